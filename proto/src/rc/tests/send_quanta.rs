//! Send quanta: the limit of new packets on a shared path (`RcQp::require_send_quanta`).

use super::*;
use crate::rc::congestion::INITIAL_WINDOW;
use WcStatus::Success;

const PACKET: u32 = MTU as u32;

/// An end that sends only within a quantum of `bytes`.
fn with_quantum(bytes: u32) -> Endpoint {
    let mut end = Endpoint::new();
    end.qp.require_send_quanta(true);
    end.qp.renew_send_quantum(bytes);
    end
}

#[test]
fn quantum_limits_new_packets_and_the_last_has_ack_req() {
    let mut end = with_quantum(3 * PACKET);
    end.post_signaled(1, SendOp::Send, 5 * MTU);
    let packets = end.poll();
    assert_eq!(packets.len(), 3);
    assert!(
        packets[2].header.bth.ack_req,
        "the last packet within the quantum"
    );
    assert!(end.qp.needs_send_quantum());
    assert_eq!(end.qp.bytes_in_flight(), 3 * PACKET);
    // An acknowledgement does not extend the quantum.
    end.deliver(ack(2), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.bytes_in_flight(), 0);
    end.qp.renew_send_quantum(3 * PACKET);
    assert!(!end.qp.needs_send_quantum());
    assert_eq!(end.poll().len(), 2);
    assert!(!end.qp.needs_send_quantum());
    end.deliver(ack(4), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn full_window_needs_no_quantum() {
    let mut end = with_quantum(1 << 20);
    end.post_signaled(1, SendOp::Send, REGION);
    let window = INITIAL_WINDOW as usize;
    assert_eq!(end.poll().len(), window);
    assert!(!end.qp.needs_send_quantum());
}

#[test]
fn retransmissions_need_no_quantum() {
    let mut end = with_quantum(3 * PACKET);
    end.post_signaled(1, SendOp::Send, 5 * MTU);
    assert_eq!(end.poll().len(), 3);
    end.wait_for_deadline();
    end.wait_for_deadline();
    assert_eq!(end.poll().len(), 1, "the window after a timeout");
    end.deliver(ack(0), &[]);
    assert_eq!(end.poll().len(), 2);
    assert!(end.poll().is_empty());
}

#[test]
fn read_request_needs_a_quantum_for_all_of_its_responses() {
    let mut end = with_quantum(3 * PACKET);
    end.post_signaled(1, read_from(0), 4 * MTU);
    assert!(end.poll().is_empty());
    assert!(end.qp.needs_send_quantum());
    end.qp.renew_send_quantum(4 * PACKET);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.qp.bytes_in_flight(), 4 * PACKET);
}

#[test]
fn responses_need_no_quantum() {
    let mut end = with_quantum(0);
    end.receive(1, &[]);
    end.deliver(request(Opcode::RcSendOnly, 0), &[]);
    assert_eq!(end.poll_one().opcode(), Opcode::RcAck);
}

#[test]
fn error_state_needs_no_quantum_and_has_nothing_in_flight() {
    let mut end = with_quantum(PACKET);
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.poll();
    assert!(end.qp.needs_send_quantum());
    end.enter(QpState::Err);
    assert!(end.poll().is_empty());
    assert!(!end.qp.needs_send_quantum());
    assert_eq!(end.qp.bytes_in_flight(), 0);
}

/// A quantum may be as small as the longest request, so a longer one would never be sent.
#[test]
fn single_read_request_does_not_outgrow_the_quantum() {
    const QUANTUM: u32 = 64 << 10;
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 1);
    end.qp.require_send_quanta(true);
    end.post_signaled(1, read_from(0), 4 * QUANTUM as usize);
    let mut answered = 0;
    while answered < 4 * QUANTUM / PACKET {
        end.qp.renew_send_quantum(QUANTUM);
        let packets = end.poll_one().header.reth.unwrap().length / PACKET;
        for psn in answered..answered + packets {
            let middle = answer(
                Opcode::RcReadResponseMiddle,
                psn,
                Syndrome::Ack(Credits::INVALID),
            );
            end.deliver(middle, &[0; MTU]);
        }
        answered += packets;
    }
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn quantum_is_spent_only_if_a_packet_waits_for_it() {
    let mut end = with_quantum(PACKET);
    assert!(!end.qp.has_spent_send_quantum(), "it is not used");
    end.post_signaled(1, SendOp::Send, MTU);
    assert_eq!(end.poll().len(), 1);
    assert!(!end.qp.has_spent_send_quantum(), "no packet waits");
    end.post_signaled(2, SendOp::Send, MTU);
    assert!(end.qp.has_spent_send_quantum());
    end.qp.renew_send_quantum(PACKET);
    assert!(!end.qp.has_spent_send_quantum());
    assert_eq!(end.poll().len(), 1);
}
