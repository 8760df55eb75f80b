//! Delayed ACKs (`driver/src/scheduling/delayed_ack.rs`), over real sockets.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, pair};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use urxe_driver::path;
use urxe_proto::work::{SendOp, WcStatus};

/// Serializes the tests: a poll of any thread sends all deferred packets of the process.
fn alone() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn delayed_acks() -> u64 {
    path::get().counters().delayed_acks.get()
}

/// Two ends that exchange messages in turn.
struct PingPong {
    ends: [End; 2],
    buffers: [Buffer; 2],
    /// Messages that each end has sent, and those that have completed.
    sent: [Cell<u32>; 2],
    confirmed: [Cell<u32>; 2],
}

impl PingPong {
    fn new() -> PingPong {
        let (a, b) = pair(|_| ());
        let buffers = [&a, &b].map(|end| Buffer::new(&end.pd, 64, ALL));
        PingPong {
            ends: [a, b],
            buffers,
            sent: Default::default(),
            confirmed: Default::default(),
        }
    }

    fn send(&self, from: usize) {
        self.sent[from].update(|sent| sent + 1);
        self.ends[from].post(1, SendOp::Send, &[self.buffers[from].sge(0, 64)]);
    }

    fn receive(&self, at: usize) {
        let sge = self.buffers[at].sge(0, 64);
        self.ends[at].qp.post_receive(2, &[sge]).unwrap();
    }

    /// Waits for the next message at an end. Completions of its sends may come first.
    fn await_message(&self, at: usize) {
        loop {
            let completion = self.ends[at].completion();
            assert_eq!(completion.status, WcStatus::Success);
            if completion.wr_id == 2 {
                return;
            }
            self.confirmed[at].update(|confirmed| confirmed + 1);
        }
    }

    /// Exchanges messages until an ACK is delayed at `at`, which has received the message and not
    /// answered it.
    fn until_delayed(&self, at: usize) {
        let (start, before) = (Instant::now(), delayed_acks());
        let mut to = at;
        loop {
            assert!(start.elapsed() < TEST_TIMEOUT, "no ACK is delayed");
            self.receive(to);
            self.send(1 - to);
            let delayed = delayed_acks();
            self.await_message(to);
            if to == at && delayed_acks() > delayed && delayed_acks() > before {
                return;
            }
            to = 1 - to;
        }
    }
}

#[test]
fn an_acknowledgement_goes_out_with_the_answer() {
    let _alone = alone();
    let pair = PingPong::new();
    pair.until_delayed(1);
    pair.receive(0);
    pair.send(1);
    pair.await_message(0);
    pair.until_delayed(0);
}

#[test]
fn a_delayed_ack_is_sent_without_an_answer() {
    let _alone = alone();
    for _ in 0..20 {
        let pair = PingPong::new();
        pair.until_delayed(1);
        let (start, sent) = (Instant::now(), || pair.ends[1].qp.counters().sent_packets);
        let before = sent();
        // This thread makes no calls, so only the progress thread can send the ACK.
        while sent() == before {
            assert!(start.elapsed() < TEST_TIMEOUT, "no ACK was received");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

#[test]
fn destroy_flushes_deferred_packets() {
    let _alone = alone();
    for _ in 0..20 {
        let pair = PingPong::new();
        pair.until_delayed(1);
        let PingPong {
            ends: [a, b],
            sent,
            confirmed,
            ..
        } = &pair;
        b.qp.destroy();
        while confirmed[0].get() < sent[0].get() {
            let completion = a.completion();
            assert_eq!(completion.status, WcStatus::Success);
            confirmed[0].update(|confirmed| confirmed + u32::from(completion.wr_id == 1));
        }
    }
}
