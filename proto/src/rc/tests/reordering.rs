//! Repairs wait for late packets on a path that reorders (RFC 8985, section 6.2).

use super::*;
use Opcode::*;
use WcStatus::Success;

/// The PSNs of the packets, from the first PSN of the queue pair on.
fn psns(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|packet| packet.psn() - OWN_PSN).collect()
}

/// Posts a WRITE of ten packets, and sends them. A round trip takes 8 ms.
fn send_ten(end: &mut Endpoint) {
    end.post_signaled(1, write_to(0), 10 * MTU);
    assert_eq!(end.poll().len(), 10);
    end.now = end.now + ms(8);
}

/// A requester whose round trip was measured, and whose first repair was needless: packet 10 was
/// late. All 20 packets are acknowledged.
fn on_reordering_path() -> Endpoint {
    let mut end = Endpoint::new();
    send_ten(&mut end);
    end.deliver(ack(9), &[]);
    send_ten(&mut end);
    end.deliver(nak(10, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [10]);
    end.now = end.now + ms(1);
    end.deliver(ack(19), &[]);
    assert_eq!(end.done(), [(1, Success), (1, Success)]);
    end
}

#[test]
fn window_is_restored_when_a_repair_was_needless() {
    let mut end = Endpoint::new();
    send_ten(&mut end);
    end.deliver(ack(9), &[]);
    let window = end.qp.congestion_window();
    send_ten(&mut end);
    end.deliver(nak(10, NakCode::PsnSequence), &[]);
    assert!(end.qp.congestion_window() < window);
    end.poll();
    end.now = end.now + ms(1);
    end.deliver(ack(19), &[]);
    assert!(end.qp.congestion_window() >= window);
}

#[test]
fn late_packet_is_not_sent_again() {
    let mut end = on_reordering_path();
    send_ten(&mut end);
    let window = end.qp.congestion_window();
    end.deliver(nak(23, NakCode::PsnSequence), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.deadline(), end.now + ms(2));
    end.now = end.now + ms(1);
    end.deliver(ack(29), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.counters().retransmitted, 1);
    assert!(end.qp.congestion_window() >= window);
    assert_eq!(end.qp.deadline(), Time::NEVER);
}

#[test]
fn lost_packet_is_sent_again_after_the_tolerance() {
    let mut end = on_reordering_path();
    send_ten(&mut end);
    for _ in 0..3 {
        end.deliver(nak(23, NakCode::PsnSequence), &[]);
    }
    assert!(end.poll().is_empty());
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [23]);
    end.deliver(ack(29), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn further_gaps_of_a_window_are_repaired_at_once() {
    let mut end = on_reordering_path();
    send_ten(&mut end);
    end.deliver(nak(23, NakCode::PsnSequence), &[]);
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [23]);
    end.now = end.now + ms(8);
    end.deliver(nak(26, NakCode::PsnSequence), &[]);
    assert_eq!(psns(&end.poll()), [26]);
}

/// Two READs of two packets each on such a path, whose responses have the offsets 20 to 23.
fn reading_twice() -> Endpoint {
    let mut end = on_reordering_path();
    for packet in [0, 2] {
        let to = sge(LOCAL, packet * MTU, 2 * MTU);
        end.post(2 + packet as u64, read_from(packet * MTU), SIGNALED, &[to]);
    }
    assert_eq!(psns(&end.poll()), [20, 22]);
    end.now = end.now + ms(8);
    end
}

/// Delivers a response whose data is its offset.
fn respond(end: &mut Endpoint, offset: u32) {
    let response = answer(RcReadResponseMiddle, offset, UNLIMITED);
    end.deliver(response, &[offset as u8; MTU]);
}

#[test]
fn late_response_is_not_requested_again_and_later_reads_are_kept() {
    let mut end = reading_twice();
    for offset in [20, 22, 23] {
        respond(&mut end, offset);
    }
    assert!(end.poll().is_empty() && end.done().is_empty());
    assert_eq!(end.qp.deadline(), end.now + ms(2));
    respond(&mut end, 21);
    assert_eq!(end.done(), [(2, Success), (4, Success)]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.deadline(), Time::NEVER);
    for packet in 0..4 {
        let data = end.host.bytes(LOCAL, packet * MTU, MTU);
        assert_eq!(data, [20 + packet as u8; MTU]);
    }
}

/// The lost response is read anew, so what was read after it the first time is older.
#[test]
fn later_reads_are_requested_again_when_the_response_was_lost() {
    let mut end = reading_twice();
    for offset in [20, 22, 23] {
        respond(&mut end, offset);
    }
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [21, 22]);
    respond(&mut end, 21);
    assert_eq!(end.done(), [(2, Success)]);
    respond(&mut end, 22);
    assert!(end.done().is_empty());
    respond(&mut end, 23);
    assert_eq!(end.done(), [(4, Success)]);
}

#[test]
fn second_late_response_is_awaited_too() {
    let mut end = reading_twice();
    respond(&mut end, 21);
    respond(&mut end, 23);
    end.now = end.now + ms(1);
    respond(&mut end, 20);
    assert_eq!(end.done(), [(2, Success)]);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.deadline(), end.now + ms(2));
    respond(&mut end, 22);
    assert_eq!(end.done(), [(4, Success)]);
}

/// Delivers the only response to a READ, sent after the responder had completed `msn` messages.
fn respond_at(end: &mut Endpoint, offset: u32, msn: u32) {
    let mut response = answer(RcReadResponseOnly, offset, UNLIMITED);
    response.aeth.as_mut().unwrap().msn = msn;
    end.deliver(response, &[offset as u8; MTU]);
}

/// A network that duplicates the request of the first READ has it executed after the second one.
#[test]
fn later_reads_are_requested_again_when_the_late_response_was_sent_after_theirs() {
    for (msn, is_newer) in [(7, false), (8, true), (9, true)] {
        let mut end = on_reordering_path();
        for packet in [0, 1] {
            let to = sge(LOCAL, packet * MTU, MTU);
            end.post(2 + packet as u64, read_from(packet * MTU), SIGNALED, &[to]);
        }
        assert_eq!(psns(&end.poll()), [20, 21]);
        end.now = end.now + ms(8);
        respond_at(&mut end, 21, 8);
        assert!(end.poll().is_empty() && end.done().is_empty());
        respond_at(&mut end, 20, msn);
        if is_newer {
            assert_eq!(end.done(), [(2, Success)]);
            assert_eq!(psns(&end.poll()), [21]);
            respond_at(&mut end, 21, 9);
            assert_eq!(end.done(), [(3, Success)]);
        } else {
            assert_eq!(end.done(), [(2, Success), (3, Success)]);
            assert!(end.poll().is_empty());
        }
    }
}
