//! The wait of a message for a receive, before it is answered with an RNR NAK.

use super::*;
use Opcode::*;
use WcStatus::Success;

/// Shorter than an eighth of the ACK timeout of [`attributes`].
const WAIT: Duration = Duration::from_millis(20);

fn waiting(out_of_order_bytes: u32, change: impl FnOnce(&mut QpAttr)) -> Endpoint {
    Endpoint::configured(QpType::Rc, out_of_order_bytes, WAIT).connected(change)
}

fn end() -> Endpoint {
    waiting(1 << 20, |_| ())
}

#[track_caller]
fn assert_rnr_nak(end: &mut Endpoint, offset: u32) {
    let sent = end.poll_one();
    assert!(matches!(sent.syndrome(), Syndrome::RnrNak(_)), "{sent:?}");
    assert_eq!(sent.psn(), PEER_PSN + offset);
}

#[test]
fn message_is_received_when_a_receive_is_posted() {
    let mut end = end();
    for (opcode, offset) in [(RcSendFirst, 0), (RcSendMiddle, 1), (RcSendLast, 2)] {
        end.deliver(request(opcode, offset), &[offset as u8; MTU]);
    }
    end.deliver(rdma(RcWriteOnly, 3, REMOTE, 0, 1), &[9]);
    assert_eq!(end.poll(), []);
    assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
    end.advance(ms(19));
    end.receive(1, &[sge(LOCAL, 0, 1000)]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 2 * MTU, 1), [2]);
    assert_eq!(end.host.bytes(REMOTE, 0, 1), [9], "the request behind it");
    assert_eq!(end.poll_one().psn(), PEER_PSN + 3);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    let counters = end.qp.counters();
    assert_eq!((counters.receives_awaited, counters.rnr_naks_sent), (1, 0));
    assert_eq!(counters.sequence_naks_received, 0);
}

#[test]
fn wait_ends_with_an_rnr_nak() {
    let mut end = end();
    let begun = end.now;
    end.deliver(request(RcSendOnly, 0), &[1]);
    end.deliver(request(RcSendOnly, 1), &[2]);
    assert_eq!(end.qp.deadline(), begun + WAIT);
    end.wait_for_deadline();
    assert_rnr_nak(&mut end, 0);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    // The receive does not revive it: the requester repeats both.
    end.receive(1, &[sge(LOCAL, 0, 100)]);
    assert_eq!((end.received(), end.poll()), (vec![], vec![]));
    end.deliver(request(RcSendOnly, 0), &[1]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.poll_one().psn(), PEER_PSN);
    // The next message may wait again.
    end.deliver(request(RcSendOnly, 1), &[2]);
    assert_eq!(end.poll(), []);
    assert_eq!(end.qp.counters().receives_awaited, 2);
}

#[test]
fn message_waits_only_once() {
    let mut end = end();
    end.deliver(request(RcSendOnly, 0), &[1]);
    end.wait_for_deadline();
    assert_rnr_nak(&mut end, 0);
    for _ in 0..3 {
        end.deliver(request(RcSendOnly, 0), &[1]);
        assert_rnr_nak(&mut end, 0);
    }
    assert_eq!(end.qp.counters().receives_awaited, 1);
}

#[test]
fn repetition_of_a_waiting_request_does_not_prolong_the_wait() {
    let mut end = end();
    let begun = end.now;
    for _ in 0..3 {
        end.deliver(request(RcSendOnly, 0), &[1]);
        end.advance(ms(5));
        assert_eq!(end.poll(), []);
        assert_eq!(end.qp.deadline(), begun + WAIT);
    }
    assert_eq!(end.qp.counters().duplicates, 2);
    end.receive(1, &[sge(LOCAL, 0, 100)]);
    end.receive(2, &[sge(LOCAL, 0, 100)]);
    assert_eq!(end.received(), [(1, Success)], "it is executed once");
}

#[test]
fn each_receive_lets_one_message_continue() {
    let mut end = end();
    for offset in 0..3 {
        end.deliver(request(RcSendOnly, offset), &[offset as u8]);
    }
    for offset in 0..3 {
        end.advance(ms(15));
        end.receive(u64::from(offset), &[sge(LOCAL, 0, 100)]);
        assert_eq!(end.received(), [(u64::from(offset), Success)]);
        assert_eq!(end.poll_one().psn(), PEER_PSN + offset);
    }
    assert_eq!(end.qp.counters().receives_awaited, 3);
    assert_eq!(end.qp.deadline(), Time::NEVER);
}

#[test]
fn a_gap_behind_a_waiting_message_is_reported_afterwards() {
    let mut end = end();
    end.deliver(request(RcSendOnly, 0), &[0]);
    end.deliver(request(RcSendOnly, 2), &[2]);
    assert_eq!(end.poll(), []);
    end.receive(1, &[sge(LOCAL, 0, 100)]);
    let syndromes: Vec<_> = end.poll().iter().map(|sent| sent.syndrome()).collect();
    assert!(
        syndromes.contains(&Syndrome::Nak(NakCode::PsnSequence)),
        "{syndromes:?}"
    );
}

#[test]
fn write_with_immediate_waits_too() {
    let mut end = end();
    end.deliver(rdma(RcWriteOnlyImm, 0, REMOTE, 0, 4), &[0xff; 4]);
    assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
    end.receive(1, &[]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.host.bytes(REMOTE, 0, 4), [0xff; 4]);
}

#[test]
fn wait_is_at_most_half_of_the_local_ack_timeout() {
    // 4.096 us times 2 to the power of 12 is 16.8 ms.
    let mut end = waiting(1 << 20, |attr| attr.timeout = 12);
    let begun = end.now;
    end.deliver(request(RcSendOnly, 0), &[1]);
    assert_eq!(
        end.qp.deadline(),
        begun + Duration::from_micros(8_388) + Duration::from_nanos(608)
    );
    // Without an ACK timeout, the peer waits for ever.
    let mut end = waiting(1 << 20, |attr| attr.timeout = 0);
    let begun = end.now;
    end.deliver(request(RcSendOnly, 0), &[1]);
    assert_eq!(end.qp.deadline(), begun + WAIT);
}

#[test]
fn message_without_room_in_the_queue_does_not_wait() {
    let mut end = waiting(100, |_| ());
    end.deliver(request(RcSendOnly, 0), &[1; MTU]);
    assert_rnr_nak(&mut end, 0);
    assert_eq!(end.qp.counters().receives_awaited, 0);
}

#[test]
fn error_state_ends_the_wait_silently() {
    let mut end = end();
    end.deliver(request(RcSendOnly, 0), &[1]);
    end.enter(QpState::Err);
    assert_eq!(end.qp.deadline(), Time::NEVER);
    end.receive(1, &[sge(LOCAL, 0, 100)]);
    assert_eq!(end.received(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(end.poll(), []);
}

/// A requester with `rnr_retry` 0 fails with the first RNR NAK.
#[test]
fn late_receives_need_no_rnr_retries() {
    let connect = |wait| {
        let end = |own, peer| {
            Endpoint::configured(QpType::Rc, 1 << 20, wait).connected(|attr| {
                (attr.sq_psn, attr.rq_psn) = (psn(own), psn(peer));
                attr.rnr_retry = 0;
            })
        };
        (end(OWN_PSN, PEER_PSN), end(PEER_PSN, OWN_PSN))
    };
    for (wait, status) in [(WAIT, Success), (Duration::ZERO, WcStatus::RnrRetryExcErr)] {
        let (mut a, mut b) = connect(wait);
        a.post_signaled(1, SendOp::Send, 100);
        exchange(&mut a, &mut b);
        b.receive(2, &[sge(LOCAL, 0, 100)]);
        exchange(&mut a, &mut b);
        assert_eq!(a.done(), [(1, status)]);
    }
}
