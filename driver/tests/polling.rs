//! The progress thread while the program polls (`driver/src/scheduling/watchdog.rs`).

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, pair};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use urxe_driver::path;
use urxe_proto::work::SendOp;

/// Serializes the tests: where the polls of two threads contend, the process opens several receive
/// sockets, and the progress thread checks them at intervals.
fn alone() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pause of this length may let the watchdog expire, whose first timeout is twice as long.
const PAUSE: Duration = Duration::from_micros(500);

/// Polls for this time, and finds nothing. Returns how often this thread has paused, because others
/// had its processor.
fn poll_for(end: &End, time: Duration) -> u64 {
    let start = Instant::now();
    let (mut last, mut pauses) = (start, 0);
    while last - start < time {
        assert_eq!(end.cq.poll(&mut [None]), 0);
        let now = Instant::now();
        pauses += u64::from(now - last >= PAUSE);
        last = now;
    }
    pauses
}

#[test]
fn progress_thread_does_not_wake_while_the_program_polls() {
    let _alone = alone();
    let (a, _b) = pair(|_| ());
    let wakeups = || path::get().counters().wakeups.get();
    let start = Instant::now();
    loop {
        let before = wakeups();
        let pauses = poll_for(&a, Duration::from_millis(100));
        if wakeups() - before <= pauses + 2 {
            return;
        }
        assert!(start.elapsed() < TEST_TIMEOUT);
    }
}

#[test]
fn progress_thread_receives_after_the_program_has_polled() {
    let _alone = alone();
    let (a, b) = pair(|_| ());
    let mut from = Buffer::new(&a.pd, 64, ALL);
    let to = Buffer::new(&b.pd, 64, ALL);
    from.fill(1);
    poll_for(&a, Duration::from_millis(50));
    let write = SendOp::Write {
        addr: to.mr.addr(),
        rkey: to.mr.rkey(),
    };
    a.post(1, write, &[from.sge(0, 64)]);
    let start = Instant::now();
    while to.now() != from.now() {
        assert!(start.elapsed() < TEST_TIMEOUT);
        thread::sleep(Duration::from_millis(1));
    }
}
