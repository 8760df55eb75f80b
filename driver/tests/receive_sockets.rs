//! Receive-side scaling within a process (`driver/src/scheduling/affinity.rs`), over real sockets.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, pair};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;
use urxe_driver::path;
use urxe_proto::work::{SendOp, WcStatus};

/// The low bits of a queue pair's number that contain its affinity.
const AFFINITY: u32 = 0xf;

/// Sends a message from `a` to `b`, and polls at both until it is complete.
fn send(a: &End, b: &End, buffers: &[Buffer; 2]) {
    let [from, to] = buffers;
    b.qp.post_receive(2, &[to.sge(0, 64)]).unwrap();
    a.post(1, SendOp::Send, &[from.sge(0, 64)]);
    let (sent, received) = (a.completion(), b.completion());
    assert_eq!((sent.wr_id, sent.status), (1, WcStatus::Success));
    assert_eq!((received.wr_id, received.status), (2, WcStatus::Success));
}

/// The one process has all queue pairs, as the threads of a program do.
#[test]
fn polls_that_contend_get_receive_sockets_of_their_own() {
    let before = path::get().receive_sockets();
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (a, b) = pair(|_| ());
                let buffers = [&a, &b].map(|end| Buffer::new(&end.pd, 64, ALL));
                while !is_over.load(Ordering::Relaxed) {
                    send(&a, &b, &buffers);
                    let opened = path::get().receive_sockets() > before.max(1);
                    let has_one = thread::available_parallelism().unwrap().get() == 1;
                    if opened || has_one {
                        // The steering program may be attached during these.
                        (0..20_000).for_each(|_| send(&a, &b, &buffers));
                        is_over.store(true, Ordering::Relaxed);
                    }
                    assert!(start.elapsed() < TEST_TIMEOUT, "no socket was opened");
                }
            });
        }
    });
}

#[test]
fn queue_pairs_of_different_completion_queues_have_different_affinities() {
    let affinity = |end: &End| end.qp.qpn().get() & AFFINITY;
    let ends = [(); 3].map(|()| End::new(None, 16));
    let [a, b, c] = ends.each_ref().map(affinity);
    // Queue pairs of other tests are created at the same time, with affinities in turn.
    assert!(a != b || b != c, "{a} {b} {c}");
}
