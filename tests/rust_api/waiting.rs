//! Waiting for completions and events.

use crate::end::{ALL, End, TIMEOUT, pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use urxe::{ReceiveRequest, SendRequest, WcStatus};

#[test]
fn the_descriptor_of_an_armed_queue_becomes_readable() {
    let (a, b, qp_a, qp_b) = pair();
    let there = b.pd.register(64, ALL).unwrap();
    for round in 0..10 {
        qp_b.post_receive(ReceiveRequest::into(there.slice(..).unwrap()).id(round))
            .unwrap();
        b.cq.arm();
        assert!(b.cq.poll().is_none());
        assert!(!readable(&b.cq, 0));
        qp_a.post_send(SendRequest::send(b"wake up")).unwrap();
        assert!(readable(&b.cq, 20));
        assert!(b.cq.clear().unwrap());
        assert!(!readable(&b.cq, 0));
        assert!(!b.cq.clear().unwrap());
        assert_eq!(b.cq.poll().unwrap().wr_id, round);
        assert_eq!(a.status(), WcStatus::Success);
    }
}

#[test]
fn arm_solicited_notifies_of_solicited_messages_only() {
    let (a, b, qp_a, qp_b) = pair();
    b.cq.arm_solicited();
    qp_b.post_receive(ReceiveRequest::empty()).unwrap();
    qp_b.post_receive(ReceiveRequest::empty()).unwrap();
    qp_a.post_send(SendRequest::send(&[])).unwrap();
    assert_eq!(a.status(), WcStatus::Success);
    assert!(!readable(&b.cq, 0));
    qp_a.post_send(SendRequest::send(&[]).solicited()).unwrap();
    assert!(readable(&b.cq, 20));
    assert_eq!(a.status(), WcStatus::Success);
}

fn readable(fd: &impl AsFd, seconds: i64) -> bool {
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

#[test]
fn wait_timeout_returns_after_the_timeout() {
    let end = End::new();
    let short = Duration::from_millis(30);
    let start = Instant::now();
    assert!(end.cq.wait_timeout(short).unwrap().is_none());
    assert!(end.context.events().next_timeout(short).unwrap().is_none());
    assert!(end.context.events().try_next().unwrap().is_none());
    let took = start.elapsed();
    assert!(took >= 2 * short && took < TIMEOUT, "{took:?}");
}
