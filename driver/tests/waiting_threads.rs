//! Threads that wait for events (`driver/src/scheduling/handoff.rs`): one of them receives.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, join};
use std::fs;
use std::sync::{Arc, mpsc};
use std::thread;
use urxe_driver::Channel;
use urxe_proto::work::{SendOp, WcStatus};

const WAITING_THREADS: usize = 32;

const MESSAGES: u64 = 500;

/// The times that a thread of this process has slept and was woken.
fn wakeups(thread: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let mut values = status
        .lines()
        .filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    values.next().unwrap().trim().parse().unwrap()
}

#[test]
fn packets_do_not_wake_each_thread_that_waits() {
    let channel = Arc::new(Channel::new().unwrap());
    let to = End::new(Some(Arc::clone(&channel)), 256);
    to.cq.arm(false);
    let (from, to) = join(End::new(None, 256), to, |_| ());
    let buffers = [&from, &to].map(|end| Buffer::new(&end.pd, 64, ALL));
    // These wait for packets, since the process has queue pairs.
    let waiting: Vec<i32> = (0..WAITING_THREADS)
        .map(|_| {
            let (tell, told) = mpsc::channel();
            thread::spawn(move || {
                let channel = Channel::new().unwrap();
                tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
                // No event arrives.
                channel.next()
            });
            told.recv_timeout(TEST_TIMEOUT).unwrap()
        })
        .collect();
    let total = || waiting.iter().map(|thread| wakeups(*thread)).sum::<u64>();
    let before = total();
    for _ in 0..MESSAGES {
        to.qp.post_receive(2, &[buffers[1].sge(0, 64)]).unwrap();
        from.post(1, SendOp::Send, &[buffers[0].sge(0, 64)]);
        let mut one = [None];
        while one[0].is_none() {
            channel.next().unwrap();
            to.cq.arm(false);
            to.cq.poll(&mut one);
        }
        assert_eq!(one[0].unwrap().status, WcStatus::Success);
        assert_eq!(from.completion().status, WcStatus::Success);
    }
    // A message is a packet and an ACK. The thread that waits first receives, until packets
    // for others have woken it often enough; all together would be woken up to 32,000 times.
    let woken = total() - before;
    assert!(woken < 2 * MESSAGES, "woken {woken} times");
}
