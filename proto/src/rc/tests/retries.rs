//! Retransmission: its start, number and timing.

use super::*;
use Opcode::*;
use WcStatus::Success;

fn psns(packets: &[Sent]) -> Vec<u32> {
    packets.iter().map(|p| p.psn() - OWN_PSN).collect()
}

#[test]
fn a_gap_is_sent_again_from_the_psn_that_the_nak_names() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 2 * MTU);
    end.ask(2, write_to(0), 3 * MTU);
    end.poll();
    end.give(nak(3, NakCode::PsnSequence), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    let again = end.poll();
    assert_eq!(psns(&again), [3, 4]);
    assert_eq!(again[0].opcode(), RcWriteMiddle);
    assert_eq!(end.qp.counters().retransmitted, 2);
    end.give(ack(4), &[]);
    assert_eq!(end.done(), [(2, Success)]);
}

#[test]
fn a_nak_that_comes_twice_is_answered_once() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 2 * MTU);
    end.poll();
    end.give(nak(0, NakCode::PsnSequence), &[]);
    assert_eq!(end.poll().len(), 2);
    for _ in 0..20 {
        end.give(nak(0, NakCode::PsnSequence), &[]);
    }
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn naks_without_progress_use_up_retry_cnt() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 2 * MTU);
    end.ask(2, SendOp::Send, 1);
    end.poll();
    for _ in 0..3 {
        end.give(nak(0, NakCode::PsnSequence), &[]);
        assert_eq!(end.poll().len(), 3);
        end.pass(ms(1));
    }
    end.give(nak(0, NakCode::PsnSequence), &[]);
    assert_eq!(
        end.done(),
        [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn retry_exceeded_after_retry_cnt_silent_timeouts() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    end.ask(2, SendOp::Send, 1);
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
fn progress_gives_back_the_retries() {
    let mut end = End::with(|attr| attr.retry_cnt = 1);
    end.ask(1, SendOp::Send, 8 * MTU);
    end.poll();
    for packet in 0..8 {
        let timeouts = |end: &mut End| {
            end.pass(Duration::from_nanos(4096 << 14));
            end.qp.handle_timeout(end.now, &mut end.host);
        };
        timeouts(&mut end);
        assert_eq!(end.qp.state(), QpState::Rts);
        end.poll();
        end.give(ack(packet), &[]);
    }
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn timeout_0_probes_for_ever() {
    let mut end = End::with(|attr| {
        attr.timeout = 0;
        attr.retry_cnt = 0;
    });
    end.ask(1, SendOp::Send, 1);
    end.poll();
    for _ in 0..1000 {
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0]);
    }
    end.give(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn rnr_nak_is_waited_out_and_the_message_sent_again() {
    let mut end = End::new();
    end.ask(1, write_to(0), 1);
    end.ask(2, SendOp::Send, 2 * MTU);
    end.poll();
    end.give(rnr_nak(1, 14), &[]);
    // It acknowledges what precedes it.
    assert_eq!(end.done(), [(1, Success)]);
    assert!(end.poll().is_empty());
    let wait = RnrTimer::new(14).duration();
    assert_eq!(end.qp.deadline(), end.now + wait);
    end.pass(wait - Duration::from_nanos(1));
    end.qp.handle_timeout(end.now, &mut end.host);
    assert!(end.poll().is_empty());
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [1, 2]);
}

#[test]
fn a_nak_for_what_follows_an_rnr_nak_is_no_loss() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 2 * MTU);
    end.poll();
    // Linux's rxe also sends this NAK each time.
    for _ in 0..20 {
        end.give(rnr_nak(0, 14), &[]);
        end.give(nak(0, NakCode::PsnSequence), &[]);
        assert!(end.poll().is_empty());
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0, 1]);
        end.pass(ms(1));
    }
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn rnr_retry_exceeded() {
    let mut end = End::with(|attr| attr.rnr_retry = 2);
    end.ask(1, SendOp::Send, 1);
    end.ask(2, SendOp::Send, 1);
    end.poll();
    for _ in 0..2 {
        end.give(rnr_nak(0, 1), &[]);
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0, 1]);
    }
    end.give(rnr_nak(0, 1), &[]);
    assert_eq!(
        end.done(),
        [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn rnr_naks_during_the_wait_spend_no_retry() {
    let mut end = End::with(|attr| attr.rnr_retry = 1);
    end.ask(1, SendOp::Send, 1);
    end.poll();
    // The first answer is late, so a probe is sent before it arrives.
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [0]);
    end.give(rnr_nak(0, 14), &[]);
    let over = end.qp.deadline();
    // The answer to the probe, and a duplicate made by the network.
    for _ in 0..2 {
        end.pass(Duration::from_micros(10));
        end.give(rnr_nak(0, 14), &[]);
        assert_eq!(end.qp.state(), QpState::Rts);
        assert_eq!(end.qp.deadline(), over);
        assert!(end.poll().is_empty());
    }
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [0]);
    // The only retry is used up.
    end.give(rnr_nak(0, 14), &[]);
    assert_eq!(end.done(), [(1, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn an_rnr_nak_for_a_later_message_begins_a_wait_of_its_own() {
    let mut end = End::with(|attr| attr.rnr_retry = 1);
    end.ask(1, SendOp::Send, 1);
    end.ask(2, SendOp::Send, 1);
    end.poll();
    end.give(rnr_nak(0, 14), &[]);
    end.pass(ms(1));
    // A copy of the first message was accepted during the wait, and the second was not.
    end.give(rnr_nak(1, 14), &[]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.deadline(), end.now + RnrTimer::new(14).duration());
    end.wait_for_deadline();
    assert_eq!(psns(&end.poll()), [1]);
}

#[test]
fn rnr_retry_7_is_for_ever() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    end.poll();
    for _ in 0..1000 {
        end.give(rnr_nak(0, 1), &[]);
        end.wait_for_deadline();
        assert_eq!(psns(&end.poll()), [0]);
    }
    assert_eq!(end.qp.counters().rnr_naks_received, 1000);
}

#[test]
fn ack_beyond_a_read_does_not_complete_it() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    end.ask(2, read_from(0), 2 * MTU);
    end.ask(3, write_to(0), 1);
    end.poll();
    end.give(ack(3), &[]);
    // Its response was lost; the requests before it are acknowledged.
    assert_eq!(end.done(), [(1, Success)]);
    let again = end.poll();
    assert_eq!(psns(&again), [1]);
    end.give(answer(RcReadResponseFirst, 1, UNLIMITED), &[4; MTU]);
    end.give(answer(RcReadResponseLast, 2, UNLIMITED), &[5; MTU]);
    // The ACK takes effect now.
    assert_eq!(end.done(), [(2, Success), (3, Success)]);
    assert_eq!(end.host.bytes(LOCAL, MTU - 1, 2), [4, 5]);
}

#[test]
fn ack_of_the_very_psn_of_a_read_does_not_complete_it() {
    let mut end = End::new();
    end.ask(1, read_from(0), 1);
    end.poll();
    end.give(ack(0), &[]);
    assert!(end.done().is_empty());
    assert_eq!(end.only().opcode(), RcReadRequest);
}

#[test]
fn read_retried_from_where_it_broke_off() {
    let mut end = End::new();
    end.ask(1, read_from(0), 5 * MTU - 3);
    end.ask(2, SendOp::Send, 1);
    end.poll();
    end.give(answer(RcReadResponseFirst, 0, UNLIMITED), &[0; MTU]);
    end.give(answer(RcReadResponseMiddle, 1, UNLIMITED), &[1; MTU]);
    // The other responses are lost, and the peer has gone on.
    end.give(ack(5), &[]);
    let again = end.poll();
    assert_eq!(psns(&again), [2]);
    let reth = again[0].header.reth.unwrap();
    assert_eq!(reth.addr, base(REMOTE) + 2 * MTU as u64);
    assert_eq!(reth.length as usize, 3 * MTU - 3);
    end.give(answer(RcReadResponseFirst, 2, UNLIMITED), &[2; MTU]);
    end.give(answer(RcReadResponseMiddle, 3, UNLIMITED), &[3; MTU]);
    end.give(answer(RcReadResponseLast, 4, UNLIMITED), &[4; MTU - 3]);
    // The ACK takes effect now.
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    for packet in 0..5 {
        assert_eq!(end.host.bytes(LOCAL, packet * MTU, 1), [packet as u8]);
    }
}

#[test]
fn retried_read_counts_from_what_has_arrived() {
    let mut end = End::new();
    end.ask(1, read_from(0), 6 * MTU);
    end.poll();
    for arrived in 0..5 {
        // The probe requests everything; after a timeout one packet is in flight at a time.
        let asked: &[usize] = if arrived == 0 { &[6, 1] } else { &[1] };
        for packets in asked {
            end.wait_for_deadline();
            let again = end.only();
            let reth = again.header.reth.unwrap();
            assert_eq!(psns(std::slice::from_ref(&again)), [arrived]);
            assert_eq!(reth.addr, base(REMOTE) + u64::from(arrived) * MTU as u64);
            assert_eq!(reth.length as usize, packets * MTU);
        }
        end.give(answer(RcReadResponseFirst, arrived, UNLIMITED), &[0; MTU]);
    }
    // The response may also use Only, or Middle or Last of the first response.
    end.give(answer(RcReadResponseLast, 5, UNLIMITED), &[0; MTU]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn a_response_that_comes_twice_is_taken_once() {
    let mut end = End::new();
    end.ask(1, read_from(0), 2 * MTU);
    end.ask(2, add(1), 8);
    end.poll();
    end.give(answer(RcReadResponseFirst, 0, UNLIMITED), &[1; MTU]);
    end.give(answer(RcReadResponseFirst, 0, UNLIMITED), &[2; MTU]);
    assert_eq!(end.host.bytes(LOCAL, 0, 1), [1]);
    end.give(answer(RcReadResponseLast, 1, UNLIMITED), &[1; MTU]);
    for original in [7, 8] {
        end.give(
            answer(RcAtomicAck, 2, UNLIMITED).with_atomic_ack(original),
            &[],
        );
    }
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 0, 8), 7_u64.to_ne_bytes());
    assert!(end.poll().is_empty());
}

#[test]
fn a_response_to_what_was_no_read_is_ignored() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    end.ask(2, add(1), 8);
    end.poll();
    end.give(answer(RcReadResponseOnly, 0, UNLIMITED), &[1]);
    end.give(answer(RcAtomicAck, 0, UNLIMITED).with_atomic_ack(1), &[]);
    assert!(end.done().is_empty());
    end.give(answer(RcReadResponseOnly, 1, UNLIMITED), &[1; 8]);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn going_back_leaves_finished_work_requests_alone() {
    let mut end = End::new();
    end.ask(1, SendOp::Send, 1);
    end.ask(2, read_from(0), 1);
    end.ask(3, SendOp::Send, 1);
    end.poll();
    // First a probe, then a full retransmission.
    end.wait_for_deadline();
    end.wait_for_deadline();
    end.give(answer(RcReadResponseOnly, 1, UNLIMITED), &[1]);
    assert_eq!(psns(&end.poll()), [2]);
    end.give(ack(2), &[]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn what_precedes_a_work_request_that_cannot_be_sent_is_sent_again() {
    let mut end = End::with(|attr| attr.timeout = 0);
    end.post(1, SendOp::Send, UNSIGNALED, &[]);
    end.post(2, SendOp::Send, SIGNALED, &[sge(NO_KEY, 0, 1)]);
    assert_eq!(psns(&end.poll()), [0]);
    // The packet is lost.
    end.wait_for_deadline();
    let again = end.only();
    assert_eq!(psns(std::slice::from_ref(&again)), [0]);
    assert!(again.header.bth.ack_req, "nothing follows that would ask");
    end.give(ack(0), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.done(), [(2, WcStatus::LocProtErr)]);
}
