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
    assert!(end.context.events().wait_timeout(short).unwrap().is_none());
    assert!(end.context.events().poll().unwrap().is_none());
    let took = start.elapsed();
    assert!(took >= 2 * short && took < TIMEOUT, "{took:?}");
}

#[test]
fn a_word_that_a_peer_writes_ends_the_wait() {
    let (a, b, qp_a, _qp_b) = pair();
    let memory = b.pd.register(4096, ALL).unwrap();
    let word = memory.word(4088).unwrap();
    let short = Duration::from_millis(5);
    let missed = b.context.wait_on_timeout(&word, |value| value != 0, short);
    assert_eq!(missed.unwrap(), None);
    for round in 1..=100_u64 {
        let data = [round; 512].map(u64::to_ne_bytes).concat();
        let data = a.pd.buffer_from(data).unwrap();
        qp_a.post_send(SendRequest::write(data, &memory.remote()))
            .unwrap();
        let value = b
            .context
            .wait_on_timeout(&word, |value| value == round, TIMEOUT);
        assert_eq!(value.unwrap(), Some(round));
        // The rest of the WRITE precedes its last word.
        assert_eq!(memory.to_vec(..8).unwrap(), round.to_ne_bytes());
        a.completion().result.unwrap();
    }
}

#[test]
fn a_wait_for_a_word_takes_no_completions() {
    let (a, b, qp_a, qp_b) = pair();
    let memory = a.pd.register(8, ALL).unwrap();
    qp_b.post_receive(ReceiveRequest::empty().id(3)).unwrap();
    qp_a.post_send(SendRequest::send(b"").id(4)).unwrap();
    let data = a.pd.buffer_from(vec![1; 8]).unwrap();
    qp_b.post_send(SendRequest::write(data, &memory.remote()).id(5))
        .unwrap_err();
    let data = b.pd.buffer_from(vec![1; 8]).unwrap();
    qp_b.post_send(SendRequest::write(data, &memory.remote()).id(5))
        .unwrap();
    let word = memory.word(0).unwrap();
    a.context.wait_on(&word, |value| value != 0).unwrap();
    assert_eq!(a.completion().wr_id, 4);
    let mut others = [b.completion().wr_id, b.completion().wr_id];
    others.sort_unstable();
    assert_eq!(others, [3, 5]);
}
