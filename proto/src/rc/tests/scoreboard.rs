//! The scoreboard: responses behind a gap in the same work request are kept, and missing ones are
//! requested again (9.7.5.2.4).

use super::*;
use crate::host::{Memory, RemoteKey};
use Opcode::*;
use WcStatus::Success;

/// A requester with an outstanding READ of `packets` packets.
fn reading(packets: usize) -> Endpoint {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), packets * MTU);
    end.poll();
    end
}

/// Delivers a response whose data is its number.
fn respond(end: &mut Endpoint, offset: u32) {
    respond_with(end, offset, offset as u8);
}

fn respond_with(end: &mut Endpoint, offset: u32, byte: u8) {
    let response = answer(RcReadResponseMiddle, offset, UNLIMITED);
    end.deliver(response, &[byte; MTU]);
}

/// Two outstanding READs, of two and three packets.
fn reading_twice() -> Endpoint {
    let mut end = Endpoint::new();
    let to = |packet: usize, len: usize| sge(LOCAL, packet * MTU, len * MTU);
    end.post(1, read_from(0), SIGNALED, &[to(0, 2)]);
    end.post(2, read_from(2 * MTU), SIGNALED, &[to(2, 3)]);
    assert_eq!(requested(&mut end), [(0, 2), (2, 3)]);
    end
}

/// The READ requests sent now: the first PSN, and the number of packets.
fn requested(end: &mut Endpoint) -> Vec<(u32, usize)> {
    let requests = end.poll();
    let piece = |p: &Sent| {
        let reth = p.header.reth.unwrap();
        let place = base(REMOTE) + u64::from(p.psn() - OWN_PSN) * MTU as u64;
        assert_eq!((p.opcode(), reth.addr), (RcReadRequest, place));
        (p.psn() - OWN_PSN, reth.length as usize / MTU)
    };
    requests.iter().map(piece).collect()
}

fn assert_all_are_there(end: &Endpoint, packets: usize) {
    for packet in 0..packets {
        let expected = [packet as u8; MTU];
        assert_eq!(end.host.bytes(LOCAL, packet * MTU, MTU), expected);
    }
}

#[test]
fn only_the_missing_response_is_requested_again() {
    let mut end = reading(6);
    for offset in [0, 1, 3, 4] {
        respond(&mut end, offset);
    }
    assert_eq!(requested(&mut end), [(2, 1)]);
    respond(&mut end, 5);
    assert!(end.done().is_empty() && end.poll().is_empty());
    respond(&mut end, 2);
    assert_eq!(end.done(), [(1, Success)]);
    assert_all_are_there(&end, 6);
    let counters = end.qp.counters();
    assert_eq!((counters.retransmitted, counters.responses_lost), (1, 1));
}

#[test]
fn new_requests_are_sent_while_a_response_is_missing() {
    let mut end = reading(4);
    respond(&mut end, 1);
    end.post_signaled(2, write_to(0), 1);
    let sent = end.poll();
    let psns: Vec<u32> = sent.iter().map(|p| p.psn() - OWN_PSN).collect();
    assert_eq!(psns, [0, 4]);
}

#[test]
fn gaps_are_requested_one_at_a_time() {
    let mut end = reading(10);
    for offset in [0, 2, 3, 5, 8, 9] {
        respond(&mut end, offset);
    }
    for (gap, packets) in [(1, 1), (4, 1), (6, 2)] {
        assert_eq!(requested(&mut end), [(gap, packets)]);
        (gap..).take(packets).for_each(|n| respond(&mut end, n));
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.done(), [(1, Success)]);
    assert_all_are_there(&end, 10);
}

#[test]
fn a_gap_across_two_reads_is_requested_by_a_request_for_each() {
    let mut end = reading_twice();
    respond(&mut end, 0);
    respond(&mut end, 4);
    assert_eq!(requested(&mut end), [(1, 1), (2, 3)]);
    (1..5).for_each(|offset| respond(&mut end, offset));
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert_all_are_there(&end, 5);
}

/// READ after READ is ordered (10.8.3.3, table 79).
#[test]
fn later_read_returns_no_older_data_than_a_repeated_earlier_one() {
    let mut end = reading_twice();
    let (before, after) = (1, 2);
    for offset in [0, 2, 3, 4] {
        respond_with(&mut end, offset, before);
    }
    assert_eq!(requested(&mut end), [(1, 1), (2, 3)]);
    // The peer's memory has changed when the first READ is executed again.
    for offset in 1..5 {
        assert!(end.host.bytes(LOCAL, 2 * MTU, 1) != [before]);
        respond_with(&mut end, offset, after);
    }
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert_eq!(end.host.bytes(LOCAL, MTU, 4 * MTU), [after; 4 * MTU]);
}

#[test]
fn later_read_is_executed_again_between_two_endpoints() {
    let (mut a, mut b) = pair(|_| {});
    let to = |packet: usize| sge(LOCAL, packet * MTU, MTU);
    a.post(1, read_from(0), SIGNALED, &[to(0)]);
    a.post(2, read_from(0), SIGNALED, &[to(1)]);
    a.poll().iter().for_each(|request| b.deliver_sent(request));
    let responses = b.poll();
    assert_eq!(responses.len(), 2);
    // The first response is lost, and an application at the target writes to the memory.
    let key = RemoteKey {
        rkey: RKey(REMOTE),
        srq: None,
    };
    b.host
        .remote_write(key, base(REMOTE), &[0xab; MTU])
        .unwrap();
    a.deliver_sent(&responses[1]);
    exchange(&mut a, &mut b);
    assert_eq!(a.done(), [(1, Success), (2, Success)]);
    assert_eq!(a.host.bytes(LOCAL, 0, 2 * MTU), [0xab; 2 * MTU]);
}

#[test]
fn writes_executed_behind_a_missing_response_are_not_retransmitted() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), MTU);
    end.post_signaled(2, write_to(0), 2 * MTU);
    end.post_signaled(3, add(1), 8);
    end.post_signaled(4, read_from(4 * MTU), MTU);
    end.post_signaled(5, SendOp::Send, 1);
    end.poll();
    end.deliver(ack(5), &[]);
    let retransmitted = end.poll();
    let sent: Vec<_> = retransmitted
        .iter()
        .map(|p| (p.psn() - OWN_PSN, p.opcode()))
        .collect();
    let expected = [(0, RcReadRequest), (3, RcFetchAdd), (4, RcReadRequest)];
    assert_eq!(sent, expected);
    respond(&mut end, 0);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    end.deliver(answer(RcAtomicAck, 3, UNLIMITED).with_atomic_ack(7), &[]);
    respond(&mut end, 4);
    assert_eq!(end.done(), [(3, Success), (4, Success), (5, Success)]);
    assert_eq!(end.qp.counters().retransmitted, 3);
}

#[test]
fn response_to_a_later_repeated_request_shows_the_loss_of_the_first() {
    let mut end = Endpoint::new();
    let to = |packet: usize| sge(LOCAL, packet * MTU, MTU);
    for packet in 0..3 {
        end.post(
            packet as u64,
            read_from(packet * MTU),
            SIGNALED,
            &[to(packet)],
        );
    }
    end.poll();
    respond(&mut end, 1);
    respond(&mut end, 2);
    assert_eq!(requested(&mut end), [(0, 1), (1, 1), (2, 1)]);
    // At once, without a timer.
    respond(&mut end, 1);
    assert_eq!(requested(&mut end), [(0, 1), (1, 1)]);
    respond(&mut end, 2);
    assert_eq!(requested(&mut end), [(2, 1)]);
    (0..3).for_each(|offset| respond(&mut end, offset));
    assert_eq!(end.done().len(), 3);
    assert_all_are_there(&end, 3);
}

#[test]
fn read_is_requested_again_when_all_of_its_responses_are_missing() {
    let mut end = reading_twice();
    respond(&mut end, 1);
    assert_eq!(requested(&mut end), [(0, 1)]);
    respond(&mut end, 2);
    respond(&mut end, 3);
    assert!(end.poll().is_empty());
    respond(&mut end, 0);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(requested(&mut end), [(2, 2)]);
    (2..5).for_each(|offset| respond(&mut end, offset));
    assert_eq!(end.done(), [(2, Success)]);
    assert_all_are_there(&end, 5);
}

/// An outstanding READ of four packets, the second of which is missing and was requested again.
fn missing_one(change: impl FnOnce(&mut QpAttr)) -> Endpoint {
    let mut end = Endpoint::with(change);
    end.post_signaled(1, read_from(0), 4 * MTU);
    end.poll();
    for offset in [0, 2, 3] {
        respond(&mut end, offset);
    }
    assert_eq!(requested(&mut end), [(1, 1)]);
    end
}

#[test]
fn dropped_partial_request_is_followed_by_one_for_the_whole_rest() {
    let mut end = missing_one(|_| ());
    end.wait_for_deadline();
    assert_eq!(requested(&mut end), [(1, 3)]);
    assert_eq!(end.qp.counters().timeouts, 0);
    (1..4).for_each(|offset| respond(&mut end, offset));
    assert_eq!(end.done(), [(1, Success)]);
    assert_all_are_there(&end, 4);
}

#[test]
fn whole_rest_is_requested_before_retries_are_exhausted() {
    let mut end = Endpoint::with(|attr| {
        attr.retry_cnt = 0;
        attr.timeout = 1;
    });
    end.post_signaled(1, read_from(0), 4 * MTU);
    end.poll();
    // The round trip exceeds the timeout, so no probe precedes the timeout.
    end.advance(ms(10));
    for offset in [0, 2, 3] {
        respond(&mut end, offset);
    }
    assert_eq!(requested(&mut end), [(1, 1)]);
    end.wait_for_deadline();
    assert_eq!(requested(&mut end), [(1, 3)]);
    end.wait_for_deadline();
    assert_eq!(end.done(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn nak_for_a_partial_request_is_not_final() {
    let mut end = missing_one(|_| ());
    end.deliver(nak(1, NakCode::InvalidRequest), &[]);
    assert_eq!(requested(&mut end), [(1, 3)]);
    // The network duplicates the NAK.
    end.deliver(nak(1, NakCode::InvalidRequest), &[]);
    assert!(end.done().is_empty() && end.poll().is_empty());
    (1..4).for_each(|offset| respond(&mut end, offset));
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.counters().fatal_naks_received, 0);
}

#[test]
fn nak_for_the_whole_rest_is_fatal() {
    let mut end = missing_one(|_| ());
    end.deliver(nak(1, NakCode::InvalidRequest), &[]);
    assert_eq!(requested(&mut end), [(1, 3)]);
    end.advance(ms(1));
    end.deliver(nak(1, NakCode::RemoteAccess), &[]);
    assert_eq!(end.done(), [(1, WcStatus::RemAccessErr)]);
    // So is a NAK for a READ of which nothing was requested again.
    let mut end = reading(4);
    respond(&mut end, 0);
    end.deliver(nak(1, NakCode::RemoteAccess), &[]);
    assert_eq!(end.done(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn exhausted_retries_after_a_nak_for_a_partial_request_report_the_nak() {
    let mut end = missing_one(|_| ());
    end.deliver(nak(1, NakCode::RemoteAccess), &[]);
    while end.qp.state() == QpState::Rts {
        // Always the whole rest: the peer accepts no partial request.
        assert!(requested(&mut end).iter().all(|request| *request == (1, 3)));
        end.wait_for_deadline();
    }
    assert_eq!(end.done(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn part_is_requested_again_from_a_responder_that_executed_it_alone() {
    let (mut a, mut b) = pair(|_| {});
    a.post_signaled(1, read_from(0), 4 * MTU);
    // The request and the probe are lost.
    assert_eq!(requested(&mut a), [(0, 4)]);
    a.wait_for_deadline();
    assert_eq!(a.poll_one().opcode(), RcWriteOnly);
    a.wait_for_deadline();
    let part = a.poll_one();
    assert_eq!(part.header.reth.unwrap().length as usize, MTU);
    b.deliver_sent(&part);
    // The response is lost. From now on the peer accepts no request across the end of this part.
    assert_eq!(b.poll().len(), 1);
    while a.host.sends.is_empty() {
        a.wait_for_deadline();
        exchange(&mut a, &mut b);
    }
    assert_eq!(a.done(), [(1, Success)]);
}

#[test]
fn response_that_is_lost_again_is_requested_again() {
    let mut end = reading(4);
    respond(&mut end, 1);
    assert_eq!(requested(&mut end), [(0, 1)]);
    respond(&mut end, 2);
    assert!(end.poll().is_empty(), "it may be under way");
    end.advance(ms(1));
    respond(&mut end, 3);
    assert_eq!(
        requested(&mut end),
        [(0, 4)],
        "the peer may not accept a partial request"
    );
    end.wait_for_deadline();
    assert_eq!(requested(&mut end), [(0, 4)], "a probe");
    respond(&mut end, 0);
    assert_eq!(end.done(), [(1, Success)]);
    assert_all_are_there(&end, 4);
}

#[test]
fn lost_read_request_is_repeated_alone_to_a_peer_that_keeps_requests() {
    let (mut a, mut b) = pair(|_| {});
    // It learns the peer's behaviour from a WRITE.
    a.post_signaled(1, write_to(0), 6 * MTU);
    let packets = a.poll();
    packets[1..]
        .iter()
        .for_each(|packet| b.deliver_sent(packet));
    exchange(&mut a, &mut b);
    for wr_id in 2..5 {
        a.post_signaled(wr_id, read_from((wr_id as usize + 4) * MTU), MTU);
    }
    let requests = a.poll();
    assert_eq!(requests.len(), 3);
    requests[1..]
        .iter()
        .for_each(|packet| b.deliver_sent(packet));
    b.poll().iter().for_each(|nak| a.deliver_sent(nak));
    assert_eq!(requested(&mut a), [(6, 1)]);
    b.deliver_sent(&requests[0]);
    exchange(&mut a, &mut b);
    assert_eq!(a.done().len(), 4);
    assert_eq!(a.qp.counters().retransmitted, 2);
}

#[test]
fn after_a_probe_the_next_read_is_requested_when_the_first_is_answered() {
    let mut end = Endpoint::new();
    for wr_id in 0..3 {
        let place = wr_id as usize * MTU;
        end.post(wr_id, read_from(place), SIGNALED, &[sge(LOCAL, place, MTU)]);
    }
    assert_eq!(end.poll().len(), 3);
    end.wait_for_deadline();
    for offset in 0..3 {
        assert_eq!(requested(&mut end), [(offset, 1)]);
        respond(&mut end, offset);
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.done().len(), 3);
    assert_all_are_there(&end, 3);
}

#[test]
fn late_response_ends_the_probe() {
    let mut end = Endpoint::new();
    for wr_id in 0..4 {
        end.post_signaled(wr_id, read_from(0), MTU);
    }
    end.poll();
    end.wait_for_deadline();
    assert_eq!(end.poll_one().psn(), OWN_PSN);
    (0..3).for_each(|offset| respond(&mut end, offset));
    assert!(end.poll().is_empty());
}

#[test]
fn lost_request_behind_a_gap_is_repeated_when_the_gap_closes() {
    let mut end = Endpoint::new();
    let to = |packet: usize, len: usize| sge(LOCAL, packet * MTU, len * MTU);
    end.post(1, read_from(0), SIGNALED, &[to(0, 3)]);
    end.post(2, read_from(3 * MTU), SIGNALED, &[to(3, 2)]);
    end.post(3, read_from(5 * MTU), SIGNALED, &[to(5, 1)]);
    end.poll();
    respond(&mut end, 0);
    respond(&mut end, 2);
    // The second request was lost, too.
    end.deliver(nak(3, NakCode::PsnSequence), &[]);
    assert_eq!(requested(&mut end), [(1, 1)]);
    respond(&mut end, 1);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(requested(&mut end), [(3, 2)]);
}

#[test]
fn read_of_half_of_the_psn_space_does_not_end_before_its_last_packet() {
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 16);
    end.host.boundless = true;
    end.post(1, read_from(0), SIGNALED, &[sge(LOCAL, 0, MTU << 23)]);
    end.post_signaled(2, read_from(0), 2 * MTU);
    let mut next = 0;
    let half = 1 << 23;
    // The last responses to the first are lost, then the first response to the second.
    while next < half - 3 {
        let requests = end.poll();
        assert!(!requests.is_empty());
        let bytes_in_flight: u32 = (requests.iter())
            .map(|p| p.header.reth.unwrap().length.div_ceil(MTU as u32))
            .sum();
        let until = (next + bytes_in_flight).min(half - 3);
        for offset in next..until {
            respond(&mut end, offset);
        }
        next = until;
    }
    end.poll();
    for offset in [half, half + 1] {
        respond(&mut end, offset);
        assert!(end.done().is_empty());
    }
}

/// Returns the probe that follows when nothing arrives: a duplicate without data.
fn read_probe(end: &mut Endpoint) -> Sent {
    end.wait_for_deadline();
    let probe = end.poll_one();
    assert_eq!(probe.opcode(), RcWriteOnly);
    assert!(probe.header.bth.ack_req && probe.payload.is_empty());
    probe
}

#[test]
fn probe_for_a_read_costs_one_packet_if_the_responses_are_late() {
    let (mut a, mut b) = pair(|_| ());
    a.post_signaled(1, read_from(0), 8 * MTU);
    a.post_signaled(2, read_from(0), 8 * MTU);
    let requests = a.poll();
    // The peer is descheduled.
    let probe = read_probe(&mut a);
    for packet in requests.iter().chain([&probe]) {
        b.deliver_sent(packet);
    }
    exchange(&mut a, &mut b);
    assert_eq!(a.done(), [(1, Success), (2, Success)]);
    assert_eq!(a.qp.counters().retransmitted, 0);
    // The responses, and the answer to the probe.
    assert_eq!(b.qp.counters().sent_packets, 16 + 1);
}

#[test]
fn answer_to_a_probe_for_a_read_shows_which_responses_are_lost() {
    let mut end = reading(4);
    respond(&mut end, 0);
    let probe = read_probe(&mut end);
    assert_eq!(probe.psn(), OWN_PSN);
    end.deliver(ack(0), &[]);
    assert_eq!(requested(&mut end), [(1, 3)]);
    (1..4).for_each(|offset| respond(&mut end, offset));
    assert_eq!(end.done(), [(1, Success)]);
    assert_all_are_there(&end, 4);
    let counters = end.qp.counters();
    assert_eq!((counters.probes, counters.timeouts), (1, 0));
    assert_eq!(counters.responses_lost, 1);
}

/// Linux's rxe acknowledges a duplicate up to the last request without a response.
#[test]
fn answer_to_a_probe_for_a_read_may_acknowledge_an_earlier_request() {
    let mut end = reading(4);
    respond(&mut end, 0);
    respond(&mut end, 1);
    read_probe(&mut end);
    end.deliver(answer(RcAck, 0, UNLIMITED), &[]);
    assert_eq!(requested(&mut end), [(2, 2)]);
}

#[test]
fn lost_reads_are_recovered_by_a_probe_between_two_endpoints() {
    // Either the requests or the responses are lost.
    for loses_requests in [true, false] {
        let (mut a, mut b) = pair(|_| ());
        a.post_signaled(1, read_from(0), 8 * MTU);
        a.post_signaled(2, read_from(0), 8 * MTU);
        let requests = a.poll();
        if !loses_requests {
            requests.iter().for_each(|packet| b.deliver_sent(packet));
            assert_eq!(b.poll().len(), 16);
        }
        let probe = read_probe(&mut a);
        b.deliver_sent(&probe);
        exchange(&mut a, &mut b);
        assert_eq!(a.done(), [(1, Success), (2, Success)]);
        let counters = a.qp.counters();
        assert_eq!((counters.probes, counters.timeouts), (1, 0));
    }
}

#[test]
fn unanswered_probe_for_a_read_is_followed_by_a_timeout() {
    let mut end = reading(4);
    read_probe(&mut end);
    end.wait_for_deadline();
    assert_eq!(end.qp.counters().timeouts, 1);
    assert_eq!(requested(&mut end), [(0, 1)]);
    // An answer to the probe has no effect any more.
    end.deliver(answer(RcAck, (1 << 24) - 1, UNLIMITED), &[]);
    assert!(end.poll().is_empty());
}

#[test]
fn new_read_waits_until_missing_responses_of_an_earlier_one_are_requested() {
    let mut end = Endpoint::new();
    let to = |packet: usize, len: usize| sge(LOCAL, packet * MTU, len * MTU);
    end.post(1, read_from(0), SIGNALED, &[to(0, 6)]);
    end.poll();
    for offset in [0, 2, 4, 5] {
        respond(&mut end, offset);
    }
    end.post(2, read_from(6 * MTU), SIGNALED, &[to(6, 1)]);
    // One gap at a time: the response to the new READ would arrive before the second gap closes.
    assert_eq!(requested(&mut end), [(1, 1)]);
    respond(&mut end, 1);
    assert_eq!(requested(&mut end), [(3, 1), (6, 1)]);
    respond(&mut end, 3);
    respond(&mut end, 6);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert_all_are_there(&end, 7);
}

#[test]
fn response_to_a_later_work_request_is_not_kept() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), 2 * MTU);
    end.post_signaled(2, add(1), 8);
    end.post_signaled(3, read_from(3 * MTU), 2 * MTU);
    end.poll();
    let before = end.host.bytes(LOCAL, 0, 2 * MTU);
    respond(&mut end, 3);
    let retransmitted: Vec<_> = end.poll().iter().map(|p| p.psn() - OWN_PSN).collect();
    assert_eq!(retransmitted, [0, 2]);
    assert_eq!(end.host.bytes(LOCAL, 0, 2 * MTU), before);
}

#[test]
fn response_of_the_wrong_length_behind_a_gap_is_not_kept() {
    let mut end = reading(4);
    let wrong = answer(RcReadResponseMiddle, 2, UNLIMITED);
    end.deliver(wrong, &[0; MTU - 4]);
    assert_eq!(requested(&mut end), [(0, 3)]);
    respond(&mut end, 0);
    respond(&mut end, 1);
    end.deliver(wrong, &[0; MTU - 4]);
    assert_eq!(end.done(), [(1, WcStatus::BadRespErr)]);
}

#[test]
fn response_that_cannot_be_written_behind_a_gap_is_not_kept() {
    let mut end = reading(4);
    end.host.deregister(LOCAL);
    respond(&mut end, 2);
    assert!(end.done().is_empty());
    respond(&mut end, 0);
    assert_eq!(end.done(), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn lost_response_costs_one_retransmission_between_two_endpoints() {
    let (mut a, mut b) = pair(|_| {});
    a.post_signaled(1, read_from(0), 40 * MTU);
    for request in a.poll() {
        b.deliver_sent(&request);
    }
    let (lost, come): (Vec<_>, Vec<_>) = b.poll().into_iter().partition(|p| p.psn() % 4 == 1);
    assert!(lost.len() > 1);
    for response in &come {
        a.deliver_sent(response);
    }
    exchange(&mut a, &mut b);
    assert_eq!(a.done(), [(1, Success)]);
    assert_eq!(a.qp.counters().retransmitted, lost.len() as u64);
    assert_eq!(b.qp.counters().sent_packets, 40 + lost.len() as u64);
    let (got, there) = (LOCAL, REMOTE);
    assert_eq!(
        a.host.bytes(got, 0, 40 * MTU),
        b.host.bytes(there, 0, 40 * MTU)
    );
}
