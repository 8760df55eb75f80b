//! Retransmission: its start, number and timing.

use super::*;
use Opcode::*;
use WcStatus::Success;

fn psns(packets: &[Sent]) -> Vec<u32> {
    packets.iter().map(|p| p.psn() - OWN_PSN).collect()
}

#[test]
fn retransmission_starts_at_the_psn_of_the_nak() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.post_signaled(2, write_to(0), 3 * MTU);
    end.poll();
    end.deliver(nak(3, NakCode::PsnSequence), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    let retransmitted = end.poll();
    assert_eq!(psns(&retransmitted), [3, 4]);
    assert_eq!(retransmitted[0].opcode(), RcWriteMiddle);
    assert_eq!(end.qp.counters().retransmitted, 2);
    end.deliver(ack(4), &[]);
    assert_eq!(end.done(), [(2, Success)]);
}

#[test]
fn duplicate_nak_causes_no_second_retransmission() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.poll();
    end.deliver(nak(0, NakCode::PsnSequence), &[]);
    assert_eq!(end.poll().len(), 2);
    for _ in 0..20 {
        end.deliver(nak(0, NakCode::PsnSequence), &[]);
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn naks_without_progress_count_against_retry_cnt() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    for _ in 0..3 {
        end.deliver(nak(0, NakCode::PsnSequence), &[]);
        assert_eq!(end.poll().len(), 3);
        end.advance(ms(1));
    }
    end.deliver(nak(0, NakCode::PsnSequence), &[]);
    assert_eq!(
        end.done(),
        [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn retry_exceeded_after_retry_cnt_timeouts() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    let start = end.now;
    let mut sent = 0;
    while end.qp.state() == QpState::Rts {
        end.wait_for_deadline();
        sent += end.poll().len();
    }
    assert!(sent >= 3);
    // Four timeouts: the first, and one after each of retry_cnt retries. Each is four times the
    // requested one.
    let timeout = Duration::from_nanos(4096 << 14) * 4;
    assert_eq!(end.now.since(start), timeout * 4);
    assert_eq!(
        end.done(),
        [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(end.qp.deadline(), Time::NEVER);
    assert_eq!(end.qp.counters().retries_exceeded, 1);
}

#[test]
fn progress_resets_the_retry_counter() {
    let mut end = Endpoint::with(|attr| attr.retry_cnt = 1);
    end.post_signaled(1, SendOp::Send, 8 * MTU);
    end.poll();
    for packet in 0..8 {
        let timeouts = |end: &mut Endpoint| {
            end.advance(Duration::from_nanos(4096 << 14));
            end.qp.handle_timeout(end.now, &mut end.host);
        };
        timeouts(&mut end);
        assert_eq!(end.qp.state(), QpState::Rts);
        end.poll();
        end.deliver(ack(packet), &[]);
    }
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn timeout_0_probes_indefinitely() {
    let mut end = Endpoint::with(|attr| {
        attr.timeout = 0;
        attr.retry_cnt = 0;
    });
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    for _ in 0..1000 {
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0]);
    }
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn spurious_timeout_repeats_only_the_oldest_packet() {
    let mut end = Endpoint::new();
    end.post_signaled(1, write_to(0), 40 * MTU);
    assert_eq!(end.poll().len(), 16);
    // The peer is descheduled for longer than two timeouts.
    for _ in 0..2 {
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0]);
    }
    // Then it acknowledges the packets that were sent first.
    end.deliver(ack(3), &[]);
    let sent: Vec<u32> = (16..20).collect();
    assert_eq!(psns(&end.poll())[..4], sent);
    for acknowledged in [7, 11, 15] {
        end.deliver(ack(acknowledged), &[]);
        end.poll();
    }
    assert_eq!(end.qp.counters().retransmitted, 2);
    end.deliver(ack(39), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn spurious_timeout_keeps_later_reads_outstanding() {
    let mut end = Endpoint::with(|attr| attr.max_rd_atomic = 2);
    for wr_id in 1..4 {
        end.post_signaled(wr_id, read_from(0), 1);
    }
    assert_eq!(psns(&end.poll()), [0, 1]);
    for _ in 0..2 {
        end.wait_for_deadline();
    }
    for late in 0..3 {
        end.deliver(answer(RcReadResponseOnly, late, UNLIMITED), &[1]);
        let next: &[u32] = if late == 0 { &[2] } else { &[] };
        assert_eq!(psns(&end.poll()), next);
    }
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn message_is_sent_again_after_the_rnr_wait() {
    let mut end = Endpoint::new();
    end.post_signaled(1, write_to(0), 1);
    end.post_signaled(2, SendOp::Send, 2 * MTU);
    end.poll();
    end.deliver(rnr_nak(1, 14), &[]);
    // It acknowledges what precedes it.
    assert_eq!(end.done(), [(1, Success)]);
    assert!(end.poll().is_empty());
    let wait = RnrTimer::new(14).duration();
    assert_eq!(end.qp.deadline(), end.now + wait);
    end.advance(wait - Duration::from_nanos(1));
    end.qp.handle_timeout(end.now, &mut end.host);
    assert!(end.poll().is_empty());
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [1, 2]);
}

#[test]
fn sequence_nak_during_the_rnr_wait_shows_no_loss() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.poll();
    // Linux's rxe also sends this NAK each time.
    for _ in 0..20 {
        end.deliver(rnr_nak(0, 14), &[]);
        end.deliver(nak(0, NakCode::PsnSequence), &[]);
        assert!(end.poll().is_empty());
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0, 1]);
        end.advance(ms(1));
    }
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn rnr_retry_exceeded() {
    let mut end = Endpoint::with(|attr| attr.rnr_retry = 2);
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    for _ in 0..2 {
        end.deliver(rnr_nak(0, 1), &[]);
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0, 1]);
    }
    end.deliver(rnr_nak(0, 1), &[]);
    assert_eq!(
        end.done(),
        [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn rnr_naks_during_the_wait_do_not_count_as_retries() {
    let mut end = Endpoint::with(|attr| attr.rnr_retry = 1);
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    // The first answer is late, so a probe is sent before it arrives.
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [0]);
    end.deliver(rnr_nak(0, 14), &[]);
    let over = end.qp.deadline();
    // The answer to the probe, and a duplicate made by the network.
    for _ in 0..2 {
        end.advance(Duration::from_micros(10));
        end.deliver(rnr_nak(0, 14), &[]);
        assert_eq!(end.qp.state(), QpState::Rts);
        assert_eq!(end.qp.deadline(), over);
        assert!(end.poll().is_empty());
    }
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [0]);
    // The only retry is used up.
    end.deliver(rnr_nak(0, 14), &[]);
    assert_eq!(end.done(), [(1, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn rnr_nak_for_a_later_message_starts_another_wait() {
    let mut end = Endpoint::with(|attr| attr.rnr_retry = 1);
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    end.deliver(rnr_nak(0, 14), &[]);
    end.advance(ms(1));
    // A copy of the first message was accepted during the wait, and the second was not.
    end.deliver(rnr_nak(1, 14), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.deadline(), end.now + RnrTimer::new(14).duration());
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [1]);
}

#[test]
fn rnr_retry_7_is_unlimited() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    for _ in 0..1000 {
        end.deliver(rnr_nak(0, 1), &[]);
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0]);
    }
    assert_eq!(end.qp.counters().rnr_naks_received, 1000);
}

#[test]
fn ack_beyond_a_read_does_not_complete_it() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, read_from(0), 2 * MTU);
    end.post_signaled(3, write_to(0), 1);
    end.poll();
    end.deliver(ack(3), &[]);
    // Its response was lost; the requests before it are acknowledged.
    assert_eq!(end.done(), [(1, Success)]);
    let retransmitted = end.poll();
    assert_eq!(psns(&retransmitted), [1]);
    end.deliver(answer(RcReadResponseFirst, 1, UNLIMITED), &[4; MTU]);
    end.deliver(answer(RcReadResponseLast, 2, UNLIMITED), &[5; MTU]);
    // The ACK takes effect now.
    assert_eq!(end.done(), [(2, Success), (3, Success)]);
    assert_eq!(end.host.bytes(LOCAL, MTU - 1, 2), [4, 5]);
}

#[test]
fn ack_of_the_psn_of_a_read_does_not_complete_it() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), 1);
    end.poll();
    end.deliver(ack(0), &[]);
    assert!(end.done().is_empty());
    assert_eq!(end.poll_one().opcode(), RcReadRequest);
}

#[test]
fn read_is_retried_from_the_first_missing_response() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), 5 * MTU - 3);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    end.deliver(answer(RcReadResponseFirst, 0, UNLIMITED), &[0; MTU]);
    end.deliver(answer(RcReadResponseMiddle, 1, UNLIMITED), &[1; MTU]);
    // The other responses are lost, and the peer has continued.
    end.deliver(ack(5), &[]);
    let retransmitted = end.poll();
    assert_eq!(psns(&retransmitted), [2]);
    let reth = retransmitted[0].header.reth.unwrap();
    assert_eq!(reth.addr, base(REMOTE) + 2 * MTU as u64);
    assert_eq!(reth.length as usize, 3 * MTU - 3);
    end.deliver(answer(RcReadResponseFirst, 2, UNLIMITED), &[2; MTU]);
    end.deliver(answer(RcReadResponseMiddle, 3, UNLIMITED), &[3; MTU]);
    end.deliver(answer(RcReadResponseLast, 4, UNLIMITED), &[4; MTU - 3]);
    // The ACK takes effect now.
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    for packet in 0..5 {
        assert_eq!(end.host.bytes(LOCAL, packet * MTU, 1), [packet as u8]);
    }
}

#[test]
fn retried_read_requests_only_the_missing_length() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), 6 * MTU);
    end.poll();
    end.wait_for_deadline();
    assert_eq!(end.poll_one().opcode(), RcWriteOnly, "a probe");
    for arrived in 0..5 {
        // After a timeout one packet is in flight at a time.
        end.wait_for_deadline();
        let retransmitted = end.poll_one();
        let reth = retransmitted.header.reth.unwrap();
        assert_eq!(psns(std::slice::from_ref(&retransmitted)), [arrived]);
        assert_eq!(reth.addr, base(REMOTE) + u64::from(arrived) * MTU as u64);
        assert_eq!(reth.length as usize, MTU);
        end.deliver(answer(RcReadResponseFirst, arrived, UNLIMITED), &[0; MTU]);
    }
    // The response may also use Only, or Middle or Last of the first response.
    end.deliver(answer(RcReadResponseLast, 5, UNLIMITED), &[0; MTU]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn duplicate_response_is_ignored() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), 2 * MTU);
    end.post_signaled(2, add(1), 8);
    end.poll();
    end.deliver(answer(RcReadResponseFirst, 0, UNLIMITED), &[1; MTU]);
    end.deliver(answer(RcReadResponseFirst, 0, UNLIMITED), &[2; MTU]);
    assert_eq!(end.host.bytes(LOCAL, 0, 1), [1]);
    end.deliver(answer(RcReadResponseLast, 1, UNLIMITED), &[1; MTU]);
    for original in [7, 8] {
        end.deliver(
            answer(RcAtomicAck, 2, UNLIMITED).with_atomic_ack(original),
            &[],
        );
    }
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 0, 8), 7_u64.to_ne_bytes());
    assert!(end.poll().is_empty());
}

#[test]
fn response_to_a_request_without_response_is_ignored() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, add(1), 8);
    end.poll();
    end.deliver(answer(RcReadResponseOnly, 0, UNLIMITED), &[1]);
    end.deliver(answer(RcAtomicAck, 0, UNLIMITED).with_atomic_ack(1), &[]);
    assert!(end.done().is_empty());
    end.deliver(answer(RcReadResponseOnly, 1, UNLIMITED), &[1; 8]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn going_back_does_not_repeat_completed_work_requests() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, read_from(0), 1);
    end.post_signaled(3, SendOp::Send, 1);
    end.poll();
    // First a probe, then a full retransmission.
    end.wait_for_deadline();
    end.wait_for_deadline();
    // The response was late. The last packet is in flight, and a probe follows if it is lost.
    end.deliver(answer(RcReadResponseOnly, 1, UNLIMITED), &[1]);
    assert!(end.poll().is_empty());
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [2]);
    end.deliver(ack(2), &[]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn packets_before_an_unsendable_work_request_are_retransmitted() {
    let mut end = Endpoint::with(|attr| attr.timeout = 0);
    end.post(1, SendOp::Send, UNSIGNALED, &[]);
    end.post(2, SendOp::Send, SIGNALED, &[sge(NO_KEY, 0, 1)]);
    assert_eq!(psns(&end.poll()), [0]);
    // The packet is lost.
    end.wait_for_deadline();
    let retransmitted = end.poll_one();
    assert_eq!(psns(std::slice::from_ref(&retransmitted)), [0]);
    assert!(
        retransmitted.header.bth.ack_req,
        "no later packet has AckReq"
    );
    end.deliver(ack(0), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.done(), [(2, WcStatus::LocProtErr)]);
}

/// Sends a message while the link is down for 30 s, with the given timeout exponent and 7 retries.
/// Returns its completions in that time and after an acknowledgement, and the number of packets.
fn send_while_the_link_is_down(timeout: u8) -> (Vec<(u64, WcStatus)>, usize) {
    let mut end = Endpoint::with(|attr| {
        attr.timeout = timeout;
        attr.retry_cnt = 7;
    });
    // A path with a short round trip, which probes soon.
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.advance(ms(1));
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    let up = end.now + ms(30_000);
    end.post_signaled(2, SendOp::Send, 1);
    let mut packets = end.poll().len();
    while end.qp.deadline() < up {
        end.wait_for_deadline();
        packets += end.poll().len();
    }
    end.now = up;
    end.deliver(ack(1), &[]);
    (end.done(), packets)
}

#[test]
fn connection_survives_a_link_that_is_down_for_30_s_if_its_retries_allow_it() {
    // 8 times 4.3 s.
    let (done, packets) = send_while_the_link_is_down(20);
    assert_eq!(done, [(2, Success)]);
    // About one in a second.
    assert!((20..60).contains(&packets), "{packets}");
    // 8 times 2.1 s.
    let (done, _) = send_while_the_link_is_down(19);
    assert_eq!(done, [(2, WcStatus::RetryExcErr)]);
}

/// A requester whose second WRITE of 1024 bytes has timed out, and what it sends then.
fn long_packet_timed_out() -> (Endpoint, Vec<Sent>) {
    let mut end = Endpoint::with(|attr| attr.path_mtu = Mtu::B1024);
    for _ in 0..2 {
        end.post_signaled(1, write_to(0), 1024);
    }
    end.poll();
    end.deliver(ack(0), &[]);
    // The tail loss probe precedes the timeout.
    end.wait_for_deadline();
    end.poll();
    end.wait_for_deadline();
    let sent = end.poll();
    (end, sent)
}

/// Lets all retries expire, and calls `answer` after each transmission.
fn exhaust_retries(end: &mut Endpoint, answer: impl Fn(&mut Endpoint)) {
    while end.qp.state() == QpState::Rts {
        answer(end);
        end.wait_for_deadline();
        end.poll();
    }
    assert_eq!(end.qp.counters().retries_exceeded, 1);
}

#[test]
fn timeout_of_a_long_packet_sends_a_short_probe_too() {
    let (_, sent) = long_packet_timed_out();
    let packets: Vec<_> = (sent.iter().map(|p| (p.psn() - OWN_PSN, p.payload.len()))).collect();
    assert_eq!(packets, [(0, 0), (1, 1024)]);
}

#[test]
fn answers_to_short_packets_only_are_counted() {
    let (mut end, _) = long_packet_timed_out();
    exhaust_retries(&mut end, |end| end.deliver(ack(0), &[]));
    assert!(end.qp.counters().long_packet_timeouts > 0);
    let (mut end, _) = long_packet_timed_out();
    exhaust_retries(&mut end, |_| {});
    assert_eq!(end.qp.counters().long_packet_timeouts, 0);
}

/// Sends a WRITE of 1024 bytes and one of `behind` bytes, and reports the first as missing until
/// the connection fails. Returns the number of long packets that are taken for too long.
fn long_packet_reported_as_missing(behind: usize) -> u64 {
    let mut end = Endpoint::with(|attr| attr.path_mtu = Mtu::B1024);
    end.post_signaled(1, write_to(0), 1024);
    end.post_signaled(2, write_to(0), behind);
    while end.qp.state() == QpState::Rts {
        end.poll();
        end.advance(ms(1));
        end.deliver(nak(0, NakCode::PsnSequence), &[]);
    }
    assert_eq!(end.qp.counters().retries_exceeded, 1);
    assert_eq!(end.qp.counters().timeouts, 0);
    end.qp.counters().long_packet_timeouts
}

#[test]
fn long_packet_that_is_missing_while_short_ones_arrive_is_counted() {
    assert_eq!(long_packet_reported_as_missing(8), 1);
    // Long packets arrive, so the cause is not their length.
    assert_eq!(long_packet_reported_as_missing(1024), 0);
}
