//! Send coalescing (`driver/src/scheduling/coalescing.rs`), over real sockets.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, pair};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use urxe_driver::path;
use urxe_proto::ids::RKey;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, WcStatus};

/// Number of words to write, each with one work request.
const WORDS: u64 = 100;

/// Serializes the tests: a poll of any thread sends all deferred packets of the process.
fn alone() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two ends, with words to write from one to the other.
struct Words {
    a: End,
    b: End,
    from: Buffer,
    to: Buffer,
}

impl Words {
    fn new() -> Words {
        let (a, b) = pair(|_| ());
        let mut from = Buffer::new(&a.pd, 8 * WORDS as usize, ALL);
        from.fill(7);
        let to = Buffer::new(&b.pd, 8 * WORDS as usize, ALL);
        Words { a, b, from, to }
    }

    /// Writes all words, one by one and in a row. Only the last one is signaled.
    fn write(&self) {
        for word in 0..WORDS {
            let (addr, rkey) = (self.to.mr.addr() + 8 * word, RKey(self.to.mr.rkey().0));
            let last = word + 1 == WORDS;
            let wr = SendWr {
                wr_id: word,
                op: SendOp::Write { addr, rkey },
                flags: if last {
                    SendFlags::SIGNALED
                } else {
                    SendFlags::empty()
                },
                payload: Payload::Sges(&[self.from.sge(8 * word, 8)]),
                dest: None,
            };
            self.a.qp.start_posting().post(&wr).unwrap();
        }
    }

    /// Waits until all words have arrived, without a call of the library.
    fn await_memory(&self) {
        let start = Instant::now();
        while self.to.now() != self.from.data {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "the WRITEs were not executed"
            );
            std::thread::yield_now();
        }
    }
}

#[test]
fn consecutive_sends_are_coalesced() {
    let _alone = alone();
    let words = Words::new();
    let gathered = || path::get().counters().coalesced_sends.get();
    let before = gathered();
    let start = Instant::now();
    // A busy machine may preempt the posting thread. Posts that follow later are sent at once.
    while gathered() - before < WORDS / 2 {
        assert!(
            start.elapsed() < TEST_TIMEOUT,
            "too few sends were deferred"
        );
        words.write();
        let completion = words.a.completion();
        assert_eq!(completion.status, WcStatus::Success);
        assert_eq!(completion.wr_id, WORDS - 1);
    }
    assert_eq!(words.to.now(), words.from.data);
    assert_eq!(words.b.qp.counters().out_of_sequence, 0);
}

#[test]
fn deferred_sends_are_flushed_while_the_program_polls_memory() {
    let _alone = alone();
    for _ in 0..20 {
        let words = Words::new();
        words.write();
        words.await_memory();
        // Wait until the back-off is over.
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn destroy_flushes_deferred_packets() {
    let _alone = alone();
    for _ in 0..20 {
        let Words { a, b, from, to } = Words::new();
        // No more than the congestion window allows at once.
        for word in 0..8 {
            let (addr, rkey) = (to.mr.addr() + 8 * word, RKey(to.mr.rkey().0));
            a.post(word, SendOp::Write { addr, rkey }, &[from.sge(8 * word, 8)]);
        }
        drop(a);
        let start = Instant::now();
        while to.now()[..8] != from.data[..8] {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "the WRITEs were not executed"
            );
            path::get().drive();
        }
        drop(b);
    }
}
