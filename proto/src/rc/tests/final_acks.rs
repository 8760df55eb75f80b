//! The final ACK flush.

use super::*;
use Opcode::*;

/// The acknowledgements sent when `end` is destroyed: their PSNs, from the peer's first.
fn final_acks(end: &mut Endpoint) -> Vec<u32> {
    end.qp.schedule_final_acks();
    let mut sink = Sink::new(end.now, usize::MAX);
    assert!(!end.qp.poll_responses(end.now, &mut end.host, &mut sink));
    let offset = |packet: &Sent| {
        assert_eq!(packet.opcode(), RcAck);
        assert!(matches!(packet.syndrome(), Syndrome::Ack(_)));
        packet.psn() - PEER_PSN
    };
    sink.packets.iter().map(offset).collect()
}

/// An end that has executed and acknowledged a WRITE, and has seen packet loss.
fn lossy_path() -> Endpoint {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.poll();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    assert_eq!(end.poll_one().psn(), PEER_PSN);
    end
}

#[test]
fn pending_ack_is_sent_before_destruction() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    assert_eq!(final_acks(&mut end), [0]);
}

#[test]
fn no_request_is_sent_before_destruction() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    assert_eq!(final_acks(&mut end), []);
}

#[test]
fn last_ack_is_repeated_on_a_lossy_path() {
    assert_eq!(final_acks(&mut lossy_path()), [0, 0]);
}

#[test]
fn pending_ack_is_sent_with_its_copies() {
    let mut end = lossy_path();
    end.deliver(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    assert_eq!(final_acks(&mut end), [1, 1, 1]);
}

#[test]
fn last_ack_is_not_repeated_on_a_path_without_loss() {
    let mut end = Endpoint::new();
    end.deliver(rdma(RcWriteOnly, 0, REMOTE, 0, 1), &[1]);
    end.poll();
    assert_eq!(final_acks(&mut end), []);
}

#[test]
fn no_ack_is_sent_before_the_first_request() {
    let mut end = Endpoint::new();
    // A gap at the start: the second packet arrived, the first did not.
    end.deliver(rdma(RcWriteOnly, 1, REMOTE, 0, 1), &[1]);
    assert!(matches!(end.poll_one().syndrome(), Syndrome::Nak(_)));
    assert_eq!(final_acks(&mut end), []);
}

#[test]
fn no_ack_follows_a_read() {
    let mut end = lossy_path();
    end.deliver(rdma(RcReadRequest, 1, REMOTE, 0, 1), &[]);
    end.poll();
    assert_eq!(final_acks(&mut end), []);
}

#[test]
fn no_ack_is_repeated_in_the_error_state() {
    let mut end = lossy_path();
    end.enter(QpState::Err);
    assert_eq!(final_acks(&mut end), []);
}
