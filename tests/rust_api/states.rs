//! Dropped objects, and the states of queue pairs.

use crate::end::{ALL, End, connect, pair, pattern, status};
use std::thread;
use std::time::Duration;
use urxe::{EventSource, EventType, QpState, ReceiveRequest, SendRequest, WcStatus, WorkQueue};

#[test]
fn a_peer_can_access_a_region_until_its_last_slice_is_dropped() {
    let (a, b, qp_a, _qp_b) = pair();
    let here = a.filled(8, 1);
    let there = b.filled(8, 2);
    let remote = there.remote();
    let slice = there.slice(2..3).unwrap();
    drop(there);
    // The slice keeps the region registered.
    qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.completion().data().unwrap(), pattern(8, 2));
    drop(slice);
    qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemAccessErr);
}

#[test]
fn a_work_request_keeps_its_memory_registered_until_its_completion_is_dropped() {
    let (a, b, qp_a, qp_b) = pair();
    let there = b.pd.register(5000, ALL).unwrap();
    let remote = there.remote();
    qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
        .unwrap();
    drop(there);
    // Only the receive keeps the region registered now, for RDMA as well.
    let here = a.filled(5000, 4);
    qp_a.post_send(SendRequest::write(here.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    qp_a.post_send(SendRequest::send(here.slice(..10).unwrap()))
        .unwrap();
    drop(here);
    assert_eq!(a.status(), WcStatus::Success);
    let received = b.completion();
    assert_eq!(received.data().unwrap(), pattern(5000, 4)[..10]);
    let mut rest = [0; 4990];
    received.buffers[0].read(10, &mut rest).unwrap();
    assert!(rest[..] == pattern(5000, 4)[10..]);
    drop(received);
    let again = a.filled(1, 1);
    qp_a.post_send(SendRequest::write(again.slice(..).unwrap(), &remote))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemAccessErr);
}

#[test]
fn dropping_a_queue_pair_discards_only_its_completions() {
    let (a, b) = (End::new(), End::new());
    let (first_a, _first_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    let (second_a, _second_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    let there = b.pd.register(8, ALL).unwrap();
    for (n, qp) in [&first_a, &second_a, &first_a, &second_a]
        .into_iter()
        .enumerate()
    {
        qp.post_send(SendRequest::write(b"12345678", &there.remote()).id(n as u64))
            .unwrap();
    }
    thread::sleep(Duration::from_millis(50));
    drop(first_a);
    assert_eq!((a.completion().wr_id, a.completion().wr_id), (1, 3));
    assert!(a.cq.poll().is_none());
}

#[test]
fn the_error_state_flushes_receives_in_order() {
    let (a, _b, qp_a, _qp_b) = pair();
    for n in 0..5 {
        qp_a.post_receive(ReceiveRequest::empty().id(n)).unwrap();
    }
    qp_a.fail().unwrap();
    assert_eq!(qp_a.state(), QpState::Err);
    for n in 0..5 {
        let flushed = a.completion();
        assert_eq!((flushed.wr_id, flushed.queue), (n, WorkQueue::Receive));
        assert_eq!(status(&flushed), WcStatus::WrFlushErr);
    }
}

#[test]
fn a_queue_pair_can_be_connected_again_after_reset() {
    let (a, b, mut qp_a, mut qp_b) = pair();
    for round in 0..20_u64 {
        qp_a.post_receive(ReceiveRequest::empty().id(1)).unwrap();
        let there = b.pd.register(8, ALL).unwrap();
        qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
            .unwrap();
        let message = round.to_be_bytes();
        qp_a.post_send(SendRequest::send(&message)).unwrap();
        assert_eq!(b.completion().data().unwrap(), message);
        assert_eq!(a.status(), WcStatus::Success);
        let (qpn, psn) = (qp_a.qpn(), qp_a.attributes().sq_psn);
        let prepared = (qp_a.reset().unwrap(), qp_b.reset().unwrap());
        assert_eq!(prepared.0.qpn(), qpn);
        assert_ne!(prepared.0.endpoint().psn, psn);
        // The reset has discarded the receive.
        assert!(a.cq.poll().is_none());
        (qp_a, qp_b) = connect(prepared.0, prepared.1);
    }
}

#[test]
fn drain_raises_an_event_and_resume_sends_again() {
    let (a, b, qp_a, _qp_b) = pair();
    let there = b.pd.register(1 << 20, ALL).unwrap();
    let here = a.filled(1 << 20, 1);
    let write = || SendRequest::write(here.slice(..).unwrap(), &there.remote());
    qp_a.post_send(write()).unwrap();
    qp_a.drain().unwrap();
    let event = a.event();
    assert_eq!(event.kind, EventType::SqDrained);
    assert_eq!(event.source, EventSource::QueuePair(qp_a.qpn()));
    assert_eq!(a.status(), WcStatus::Success);
    qp_a.post_send(write()).unwrap();
    assert!(
        a.cq.wait_timeout(Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    qp_a.resume().unwrap();
    assert_eq!(a.status(), WcStatus::Success);
}
