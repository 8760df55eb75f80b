//! Pacing of requests on a long path.

use super::*;
use crate::rc::congestion::INITIAL_WINDOW;

const LONG: Duration = Duration::from_millis(10);
const SHORT: Duration = Duration::from_micros(100);

/// A requester with three WRITEs of 1000 packets, and a window of more than the initial one after
/// `rounds` round trips of this length. No packet is in flight.
fn with_window(round_trip: Duration, rounds: u32) -> (Endpoint, u32) {
    let mut end = Endpoint::new();
    for wr_id in 0..3 {
        end.post_signaled(wr_id, write_to(0), 1000 * MTU);
    }
    let mut sent = 0;
    for _ in 0..rounds {
        sent += end.poll_for(round_trip).len() as u32;
        end.deliver(ack(sent - 1), &[]);
    }
    (end, sent)
}

#[test]
fn window_of_a_long_path_is_sent_in_batches() {
    let (mut end, _) = with_window(LONG, 3);
    let window = end.qp.congestion_window() as usize;
    assert!(window >= 64, "{window}");
    let (begins, mut sent) = (end.now, 0);
    loop {
        let packets = end.poll();
        assert!((2..=INITIAL_WINDOW as usize).contains(&packets.len()));
        let last = packets.last().unwrap();
        assert!(last.header.bth.ack_req, "acknowledgements pace the sender");
        sent += packets.len();
        assert!(end.poll().is_empty(), "the next batch is not due");
        if sent == window {
            break;
        }
        end.wait_for_deadline();
    }
    // In slow start the window is sent in half of a round trip.
    let took = end.now.since(begins);
    assert!((LONG / 4..LONG).contains(&took), "{took:?}");
}

#[test]
fn window_of_a_short_path_is_sent_at_once() {
    let (mut end, _) = with_window(SHORT, 3);
    let window = end.qp.congestion_window() as usize;
    assert!(window >= 64, "{window}");
    assert_eq!(end.poll().len(), window);
}

#[test]
fn shared_path_is_not_paced() {
    let (mut end, _) = with_window(LONG, 3);
    end.qp.require_send_quanta(true);
    end.qp.renew_send_quantum(1 << 20);
    let window = end.qp.congestion_window() as usize;
    assert_eq!(end.poll().len(), window);
    assert!(!end.qp.needs_send_quantum());
}

#[test]
fn pacing_needs_no_send_quantum() {
    let (mut end, _) = with_window(LONG, 3);
    end.poll();
    assert!(!end.qp.needs_send_quantum());
}

/// A driver that cannot send now would otherwise call the timer again and again.
#[test]
fn expired_pacing_deadline_is_no_deadline_until_the_next_transmission() {
    let (mut end, _) = with_window(LONG, 3);
    end.poll();
    let paced_until = end.qp.deadline();
    assert!(paced_until < end.now + LONG / 4);
    end.wait_for_deadline();
    assert!(end.qp.deadline() > end.now);
    assert!(!end.poll().is_empty());
}

#[test]
fn error_state_has_no_pacing_deadline() {
    let (mut end, _) = with_window(LONG, 3);
    end.poll();
    end.enter(QpState::Err);
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.deadline(), Time::NEVER);
}

#[test]
fn retransmission_is_not_paced() {
    let (mut end, sent) = with_window(LONG, 3);
    let batch = end.poll().len() as u32;
    end.deliver(nak(sent + batch - 2, NakCode::PsnSequence), &[]);
    let packets = end.poll();
    assert_eq!(packets[0].psn() - OWN_PSN, sent + batch - 2);
}

#[test]
fn read_requests_of_a_long_path_are_paced() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), 1000 * MTU);
    let mut answered = 0;
    let mut requests = Vec::new();
    for _ in 0..4 {
        requests = end.poll();
        let at = end.now + LONG;
        let mut polls = 1;
        while end.qp.deadline() < at {
            end.wait_for_deadline();
            let later = end.poll();
            polls += u32::from(!later.is_empty());
            requests.extend(later);
        }
        end.now = at;
        for request in &requests {
            for _ in 0..request.header.reth.unwrap().length / MTU as u32 {
                let header = answer(
                    Opcode::RcReadResponseMiddle,
                    answered,
                    Syndrome::Ack(Credits::INVALID),
                );
                end.deliver(header, &[0; MTU]);
                answered += 1;
            }
        }
        if answered > 100 {
            assert!(polls > 1, "{answered}");
        }
    }
    assert!(requests.len() > 1);
}

/// A requester that has sent the first packets of a window on a long path, and the PSN of the first
/// one. The peer has shown whether it keeps requests behind a gap.
fn with_batch_in_flight(keeps: bool) -> (Endpoint, u32) {
    let (mut end, first) = with_window(LONG, 3);
    let second = first + end.poll_for(LONG).len() as u32;
    end.deliver(nak(first, NakCode::PsnSequence), &[]);
    let mut last = end.poll().last().unwrap().psn() - OWN_PSN;
    end.advance(LONG);
    if keeps {
        last = second - 1;
    }
    end.deliver(ack(last), &[]);
    while last + 1 < second {
        last = end.poll_for(LONG).last().unwrap().psn() - OWN_PSN;
        end.deliver(ack(last), &[]);
    }
    assert!(end.poll().len() > 4);
    (end, last + 1)
}

#[test]
fn new_packets_are_sent_at_the_rate_of_the_window_while_a_gap_is_repaired() {
    let (mut end, first) = with_batch_in_flight(true);
    end.deliver(nak(first, NakCode::PsnSequence), &[]);
    let window = end.qp.congestion_window() as usize;
    let packets = end.poll_for(LONG);
    assert_eq!(packets[0].psn() - OWN_PSN, first);
    let new = packets.len() - 1;
    assert!(
        (window / 2..window + window / 4).contains(&new),
        "{new} {window}"
    );
    // The inflated window has twice its size at most.
    end.poll_for(LONG * 2);
    let in_flight = end.qp.bytes_in_flight() as usize / MTU;
    assert!(
        (window + 1..=2 * window).contains(&in_flight),
        "{in_flight} {window}"
    );
}

#[test]
fn window_is_not_inflated_for_a_peer_that_goes_back_n() {
    let (mut end, first) = with_batch_in_flight(false);
    end.deliver(nak(first, NakCode::PsnSequence), &[]);
    let window = end.qp.congestion_window() as usize;
    end.poll_for(LONG);
    assert!(end.qp.bytes_in_flight() as usize <= window * MTU);
}
