//! The final ACK flush.

use super::*;
use Opcode::*;

/// The acknowledgements sent when `end` is destroyed: their PSNs, from the peer's first.
fn last_words(end: &mut End) -> Vec<u32> {
    end.qp.say_farewell();
    let mut sink = Sink::new(end.now, usize::MAX);
    assert!(!end.qp.poll_answers(end.now, &mut end.host, &mut sink));
    let offset = |packet: &Sent| {
        assert_eq!(packet.opcode(), RcAck);
        assert!(matches!(packet.syndrome(), Syndrome::Ack(_)));
        packet.psn() - PEER_PSN
    };
    sink.packets.iter().map(offset).collect()
}

/// An end that has executed and acknowledged a WRITE, and has seen packet loss.
fn on_a_lossy_path() -> End {
    let mut end = End::new();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.poll();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    assert_eq!(end.only().psn(), PEER_PSN);
    end
}

#[test]
fn owed_acknowledgement_goes_out_before_the_end() {
    let mut end = End::new();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    assert_eq!(last_words(&mut end), [0]);
}

#[test]
fn nothing_but_answers_goes_out_before_the_end() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    assert_eq!(last_words(&mut end), []);
}

#[test]
fn last_acknowledgement_is_repeated_where_packets_are_lost() {
    assert_eq!(last_words(&mut on_a_lossy_path()), [0, 0]);
}

#[test]
fn owed_acknowledgement_is_one_of_those_that_are_repeated() {
    let mut end = on_a_lossy_path();
    end.give(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    assert_eq!(last_words(&mut end), [1, 1, 1]);
}

#[test]
fn where_nothing_was_lost_nothing_is_repeated() {
    let mut end = End::new();
    end.give(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.poll();
    assert_eq!(last_words(&mut end), []);
}

#[test]
fn who_got_no_request_acknowledges_nothing() {
    let mut end = End::new();
    // A gap at the start: the second packet arrived, the first did not.
    end.give(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    assert!(matches!(end.only().syndrome(), Syndrome::Nak(_)));
    assert_eq!(last_words(&mut end), []);
}

#[test]
fn read_that_came_last_is_not_acknowledged() {
    let mut end = on_a_lossy_path();
    end.give(rdma(RcReadRequest, 1, REMOTE, 0, 1), &[]);
    end.poll();
    assert_eq!(last_words(&mut end), []);
}

#[test]
fn after_an_error_nothing_is_repeated() {
    let mut end = on_a_lossy_path();
    end.to(QpState::Err);
    assert_eq!(last_words(&mut end), []);
}
