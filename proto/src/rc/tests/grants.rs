//! Send quanta: the limit of new packets on a shared path (`RcQp::require_grants`).

use super::*;
use crate::rc::congestion::INITIAL_WINDOW;
use WcStatus::Success;

const PACKET: u32 = MTU as u32;

/// An end that sends only within a quantum of `bytes`.
fn granted(bytes: u32) -> End {
    let mut end = End::new();
    end.qp.require_grants(true);
    end.qp.grant(bytes);
    end
}

#[test]
fn no_more_goes_than_was_granted_and_the_last_packet_asks() {
    let mut end = granted(3 * PACKET);
    end.ask(1, SendOp::Send, 5 * MTU);
    let packets = end.poll();
    assert_eq!(packets.len(), 3);
    assert!(packets[2].header.bth.ack_req, "else nobody hears of it");
    assert!(end.qp.wants_grant());
    assert_eq!(end.qp.under_way(), 3 * PACKET);
    // An acknowledgement does not extend the quantum.
    end.give(ack(2), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.under_way(), 0);
    end.qp.grant(3 * PACKET);
    assert!(!end.qp.wants_grant());
    assert_eq!(end.poll().len(), 2);
    assert!(!end.qp.wants_grant());
    end.give(ack(4), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn a_full_window_wants_no_grant() {
    let mut end = granted(1 << 20);
    end.ask(1, SendOp::Send, REGION);
    let window = INITIAL_WINDOW as usize;
    assert_eq!(end.poll().len(), window);
    assert!(!end.qp.wants_grant());
}

#[test]
fn what_goes_again_needs_no_grant() {
    let mut end = granted(3 * PACKET);
    end.ask(1, SendOp::Send, 5 * MTU);
    assert_eq!(end.poll().len(), 3);
    end.wait_for_deadline();
    end.wait_for_deadline();
    assert_eq!(end.poll().len(), 1, "a window of one after silence");
    end.give(ack(0), &[]);
    assert_eq!(end.poll().len(), 2);
    assert!(end.poll().is_empty());
}

#[test]
fn a_read_is_granted_whole() {
    let mut end = granted(3 * PACKET);
    end.ask(1, read_from(0), 4 * MTU);
    assert!(end.poll().is_empty());
    assert!(end.qp.wants_grant());
    end.qp.grant(4 * PACKET);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.qp.under_way(), 4 * PACKET);
}

#[test]
fn answers_need_no_grant() {
    let mut end = granted(0);
    end.receive(1, &[]);
    end.give(request(Opcode::RcSendOnly, 0), &[]);
    assert_eq!(end.only().opcode(), Opcode::RcAck);
}

#[test]
fn in_the_error_state_nothing_is_wanted_and_nothing_is_under_way() {
    let mut end = granted(PACKET);
    end.ask(1, SendOp::Send, 2 * MTU);
    end.poll();
    assert!(end.qp.wants_grant());
    end.to(QpState::Err);
    assert!(end.poll().is_empty());
    assert!(!end.qp.wants_grant());
    assert_eq!(end.qp.under_way(), 0);
}
