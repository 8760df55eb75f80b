//! Keep-alives of an idle connection.

use super::*;
use Opcode::*;
use WcStatus::{RetryExcErr, Success, WrFlushErr};

fn probe(end: &mut End) -> Option<Sent> {
    let mut sink = Sink::new(end.now, usize::MAX);
    let asked = end.qp.poll_probe(end.now, &mut sink);
    assert_eq!(asked, !sink.packets.is_empty());
    sink.packets.pop()
}

#[test]
fn probe_is_a_duplicate_that_writes_nothing() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    end.poll();
    end.give(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    let sent = probe(&mut end).unwrap();
    assert_eq!((sent.opcode(), sent.psn()), (RcWriteOnly, OWN_PSN));
    assert!(sent.header.bth.ack_req);
    assert_eq!(sent.header.reth.unwrap().length, 0);
    assert!(sent.payload.is_empty());
}

#[test]
fn probe_is_answered_and_changes_nothing_at_either_end() {
    // Before the first request, after a SEND, and after a READ.
    let (mut a, mut b) = pair(|_| ());
    for op in [None, Some(SendOp::Send), Some(read_from(0))] {
        if let Some(op) = op {
            b.receive(1, &[sge(LOCAL, 0, 1)]);
            a.ask(1, op, 1);
            exchange(&mut a, &mut b);
            assert_eq!(a.done(), [(1, Success)]);
            b.received();
        }
        let before = (a.qp.attributes(), b.qp.attributes());
        let asked = probe(&mut a).unwrap();
        b.give_sent(&asked);
        let answer = b.only();
        let heard = a.qp.counters().received_packets;
        a.give_sent(&answer);
        assert_eq!(a.qp.counters().received_packets, heard + 1);
        assert_eq!(a.qp.counters().stale_responses, 0);
        assert!(a.poll().is_empty() && b.poll().is_empty());
        assert_eq!((a.qp.attributes(), b.qp.attributes()), before);
        assert!(a.done().is_empty() && b.received().is_empty());
    }
}

#[test]
fn while_an_answer_is_awaited_nobody_is_probed() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    end.poll();
    assert_eq!(probe(&mut end), None);
}

#[test]
fn who_does_not_send_probes_nobody() {
    let mut end = End::new();
    end.to(QpState::Err);
    assert_eq!(probe(&mut end), None);
}

#[test]
fn end_of_the_peer_is_as_too_many_retries() {
    let mut end = End::new();
    end.receive(3, &[sge(LOCAL, 0, 1)]);
    end.ask(1, SendOp::Send, 1);
    end.ask(2, SendOp::Send, 1);
    end.poll();
    end.qp.peer_is_gone(end.now, &mut end.host);
    assert_eq!(end.done(), [(1, RetryExcErr), (2, WrFlushErr)]);
    assert_eq!(end.received(), [(3, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn end_of_the_peer_flushes_receives_where_nothing_was_sent() {
    let mut end = End::new();
    end.receive(3, &[sge(LOCAL, 0, 1)]);
    end.qp.peer_is_gone(end.now, &mut end.host);
    assert_eq!(end.received(), [(3, WrFlushErr)]);
    assert!(end.done().is_empty());
    assert_eq!(end.qp.state(), QpState::Err);
}
