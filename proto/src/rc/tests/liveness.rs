//! Keep-alives of an idle connection.

use super::*;
use Opcode::*;
use WcStatus::{RetryExcErr, Success, WrFlushErr};

fn probe(end: &mut Endpoint) -> Option<Sent> {
    let mut sink = Sink::new(end.now, usize::MAX);
    let is_sent = end.qp.poll_keep_alive(end.now, &mut sink);
    assert_eq!(is_sent, !sink.packets.is_empty());
    sink.packets.pop()
}

#[test]
fn probe_is_a_duplicate_that_writes_nothing() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    let sent = probe(&mut end).unwrap();
    assert_eq!((sent.opcode(), sent.psn()), (RcWriteOnly, OWN_PSN));
    assert!(sent.header.bth.ack_req);
    assert_eq!(sent.header.reth.unwrap().length, 0);
    assert!(sent.payload.is_empty());
}

#[test]
fn probe_is_acknowledged_and_changes_nothing_at_either_end() {
    // Before the first request, after a SEND, and after a READ.
    let (mut a, mut b) = pair(|_| ());
    for op in [None, Some(SendOp::Send), Some(read_from(0))] {
        if let Some(op) = op {
            b.receive(1, &[sge(LOCAL, 0, 1)]);
            a.post_signaled(1, op, 1);
            exchange(&mut a, &mut b);
            assert_eq!(a.done(), [(1, Success)]);
            b.received();
        }
        let before = (a.qp.attributes(), b.qp.attributes());
        let packet = probe(&mut a).unwrap();
        b.deliver_sent(&packet);
        let answer = b.poll_one();
        let received = a.qp.counters().received_packets;
        a.deliver_sent(&answer);
        assert_eq!(a.qp.counters().received_packets, received + 1);
        assert_eq!(a.qp.counters().stale_responses, 0);
        assert!(a.poll().is_empty() && b.poll().is_empty());
        assert_eq!((a.qp.attributes(), b.qp.attributes()), before);
        assert!(a.done().is_empty() && b.received().is_empty());
    }
}

#[test]
fn no_probe_is_sent_while_a_response_is_outstanding() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    assert_eq!(probe(&mut end), None);
}

#[test]
fn no_probe_is_sent_before_rts() {
    let mut end = Endpoint::new();
    end.enter(QpState::Err);
    assert_eq!(probe(&mut end), None);
}

#[test]
fn peer_exit_has_the_effect_of_exhausted_retries() {
    let mut end = Endpoint::new();
    end.receive(3, &[sge(LOCAL, 0, 1)]);
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    end.qp.handle_peer_exit(end.now, &mut end.host);
    assert_eq!(end.done(), [(1, RetryExcErr), (2, WrFlushErr)]);
    assert_eq!(end.received(), [(3, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn peer_exit_flushes_receives_when_no_request_is_outstanding() {
    let mut end = Endpoint::new();
    end.receive(3, &[sge(LOCAL, 0, 1)]);
    end.qp.handle_peer_exit(end.now, &mut end.host);
    assert_eq!(end.received(), [(3, WrFlushErr)]);
    assert!(end.done().is_empty());
    assert_eq!(end.qp.state(), QpState::Err);
}
