//! Errors on the wire, as the requester and the responder report them.

use crate::end::{ALL, End, connect, connect_with, pair, status};
use std::thread;
use std::time::{Duration, Instant};
use urxe::{
    ConnectOptions, EventSource, EventType, MemoryRegion, PostError, QpState, RKey, ReceiveRequest,
    RemoteAccess, SendRequest, WcStatus,
};

/// The time after which a test that waits has failed.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn an_access_error_is_reported_at_both_ends() {
    type Attempt = fn(&MemoryRegion, &MemoryRegion) -> SendRequest<'static>;
    let attempts: [(RemoteAccess, Attempt); 3] = [
        (ALL - RemoteAccess::WRITE, |here, there| {
            SendRequest::write(here.slice(..).unwrap(), &there.remote())
        }),
        (ALL - RemoteAccess::READ, |here, there| {
            SendRequest::read(here.slice(..).unwrap(), &there.remote())
        }),
        (ALL - RemoteAccess::ATOMIC, |here, there| {
            let word = there.remote().word(0).unwrap();
            SendRequest::fetch_add(&here.word(0).unwrap(), word, 1)
        }),
    ];
    for (access, attempt) in attempts {
        let (a, b, qp_a, qp_b) = pair();
        let here = a.filled(64, 1);
        let there = b.pd.register(64, access).unwrap();
        qp_a.post_send(attempt(&here, &there).id(1)).unwrap();
        qp_a.post_send(attempt(&here, &there).id(2)).unwrap();
        let failed = a.completion();
        assert_eq!((failed.wr_id, status(&failed)), (1, WcStatus::RemAccessErr));
        let flushed = a.completion();
        assert_eq!((flushed.wr_id, status(&flushed)), (2, WcStatus::WrFlushErr));
        assert_eq!(qp_a.state(), QpState::Err);
        let event = b.event();
        assert_eq!(event.kind, EventType::QpAccessErr);
        assert_eq!(event.source, EventSource::QueuePair(qp_b.qpn()));
        assert_eq!(there.to_vec(..).unwrap(), [0; 64]);
    }
}

#[test]
fn a_wrong_key_or_range_is_a_remote_access_error() {
    for wrong in [true, false] {
        let (a, b, qp_a, _qp_b) = pair();
        let here = a.filled(64, 1);
        let there = b.pd.register(32, ALL).unwrap();
        let mut remote = there.remote();
        if wrong {
            remote.rkey = RKey(remote.rkey.0 ^ 0x100);
        } else {
            remote.len = 64;
        }
        let len = remote.len as usize;
        qp_a.post_send(SendRequest::write(here.slice(..len).unwrap(), &remote))
            .unwrap();
        assert_eq!(a.status(), WcStatus::RemAccessErr);
    }
}

#[test]
fn the_access_of_the_queue_pair_limits_that_of_the_region() {
    let (a, b) = (End::new(), End::new());
    let prepared = b.qp().remote_access(RemoteAccess::READ).build().unwrap();
    let (qp_a, _qp_b) = connect(a.qp().build().unwrap(), prepared);
    let (here, there) = (a.filled(8, 1), b.filled(8, 2));
    qp_a.post_send(SendRequest::read(here.slice(..).unwrap(), &there.remote()))
        .unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    qp_a.post_send(SendRequest::write(here.slice(..).unwrap(), &there.remote()))
        .unwrap();
    assert_ne!(a.status(), WcStatus::Success);
}

#[test]
fn a_receive_that_is_too_small_is_an_error_at_both_ends() {
    let (a, b, qp_a, qp_b) = pair();
    let (here, there) = (a.filled(9000, 1), b.pd.register(8999, ALL).unwrap());
    qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
        .unwrap();
    qp_a.post_send(SendRequest::send(here.slice(..).unwrap()))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemInvReqErr);
    assert_eq!(b.status(), WcStatus::LocLenErr);
}

#[test]
fn rnr_naks_are_retried_up_to_the_limit() {
    let (a, b) = (End::new(), End::new());
    let there = b.pd.register(64, ALL).unwrap();
    let (qp_a, qp_b) = connect(a.qp().build().unwrap(), b.qp().build().unwrap());
    qp_a.post_send(SendRequest::send(b"unlimited")).unwrap();
    let deadline = Instant::now() + LIMIT;
    while qp_b.counters().rnr_naks_sent == 0 {
        assert!(Instant::now() < deadline, "no RNR NAK");
        thread::sleep(Duration::from_millis(1));
    }
    qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()))
        .unwrap();
    assert_eq!(b.completion().data().unwrap(), b"unlimited");
    assert_eq!(a.status(), WcStatus::Success);

    let mut options = ConnectOptions::default();
    options.rnr_retry = 1;
    options.min_rnr_timer = 1;
    let prepared = (a.qp().build().unwrap(), b.qp().build().unwrap());
    let (qp_a, _qp_b) = connect_with(prepared.0, prepared.1, &options);
    qp_a.post_send(SendRequest::send(b"limited")).unwrap();
    assert_eq!(a.status(), WcStatus::RnrRetryExcErr);
}

#[test]
fn a_peer_that_does_not_respond_exceeds_the_retry_count() {
    let (a, b) = (End::new(), End::new());
    let mut options = ConnectOptions::default();
    options.timeout = 8;
    options.retry_cnt = 2;
    let prepared = (a.qp().build().unwrap(), b.qp().build().unwrap());
    let (qp_a, qp_b) = connect_with(prepared.0, prepared.1, &options);
    drop(qp_b);
    qp_a.post_send(SendRequest::send(b"message")).unwrap();
    let failed = a.completion();
    assert_eq!(status(&failed), WcStatus::RetryExcErr);
    let message = failed.result.unwrap_err().to_string();
    assert!(message.contains("did not respond"), "{message}");
    // Work requests posted from now on are flushed.
    qp_a.post_send(SendRequest::send(b"message").unsignaled())
        .unwrap();
    qp_a.post_receive(ReceiveRequest::empty()).unwrap();
    assert_eq!(a.status(), WcStatus::WrFlushErr);
    assert_eq!(a.status(), WcStatus::WrFlushErr);
}

#[test]
fn memory_of_another_protection_domain_is_an_error() {
    let (a, b, qp_a, qp_b) = pair();
    let other = a.context.pd().register(64, ALL).unwrap();
    let slice = || other.slice(..).unwrap();
    let error = Err(PostError::OtherProtectionDomain);
    assert_eq!(qp_a.post_send(SendRequest::send(slice())), error);
    assert_eq!(qp_b.post_receive(ReceiveRequest::into(slice())), error);
    let own = a.filled(8, 1);
    let mixed = vec![own.slice(..).unwrap(), slice()];
    assert_eq!(qp_a.post_send(SendRequest::send(mixed)), error);
    // A peer cannot access it through this connection either.
    qp_b.post_send(SendRequest::write(b"x", &other.remote()))
        .unwrap();
    assert_eq!(b.status(), WcStatus::RemAccessErr);
}
