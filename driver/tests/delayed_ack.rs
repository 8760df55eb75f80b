//! Delayed ACKs (`driver/src/scheduling/delayed_ack.rs`), over real sockets.

mod common;

use common::{ALL, Buffer, End, TEST_TIMEOUT, join, pair};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use urxe_driver::{Channel, path};
use urxe_proto::work::{Completion, SendOp, WcStatus};

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
    /// The channels of the ends, if these wait for completion events instead of polling.
    channels: Option<[Arc<Channel>; 2]>,
    ends: [End; 2],
    buffers: [Buffer; 2],
    /// Messages that each end has sent, and those that have completed.
    sent: [Cell<u32>; 2],
    confirmed: [Cell<u32>; 2],
}

impl PingPong {
    fn new() -> PingPong {
        PingPong::of(None, pair(|_| ()))
    }

    /// Creates two ends that wait for completion events.
    fn with_events() -> PingPong {
        let channels = [(); 2].map(|()| Arc::new(Channel::new().unwrap()));
        let [a, b] = [0, 1].map(|end| {
            let end = End::new(Some(Arc::clone(&channels[end])), 256);
            end.cq.arm(false);
            end
        });
        PingPong::of(Some(channels), join(a, b, |_| ()))
    }

    fn of(channels: Option<[Arc<Channel>; 2]>, (a, b): (End, End)) -> PingPong {
        let buffers = [&a, &b].map(|end| Buffer::new(&end.pd, 64, ALL));
        PingPong {
            channels,
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
            let completion = self.completion(at);
            assert_eq!(completion.status, WcStatus::Success);
            if completion.wr_id == 2 {
                return;
            }
            self.confirmed[at].update(|confirmed| confirmed + 1);
        }
    }

    /// Returns the next completion of an end: polled, or after its event.
    fn completion(&self, at: usize) -> Completion {
        let end = &self.ends[at];
        let Some(channels) = &self.channels else {
            return end.completion();
        };
        let mut one = [None];
        while one[0].is_none() {
            channels[at].next().unwrap();
            end.cq.arm(false);
            end.cq.poll(&mut one);
        }
        one[0].unwrap()
    }

    /// The bytes that an end has sent and that are not acknowledged.
    fn bytes_in_flight(&self, of: usize) -> u32 {
        let report = urxe_driver::stat::report();
        let qpn = self.ends[of].qp.qpn().get();
        let mut all = report.queue_pairs.iter();
        all.find(|qp| qp.qpn == qpn).unwrap().in_flight
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
    for pair in [PingPong::new(), PingPong::with_events()] {
        pair.until_delayed(1);
        pair.receive(0);
        pair.send(1);
        pair.await_message(0);
        pair.until_delayed(0);
    }
}

#[test]
fn a_request_for_a_notification_leaves_the_ack_to_the_answer() {
    let _alone = alone();
    let pair = PingPong::with_events();
    let sent = || pair.ends[1].qp.counters().sent_packets;
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < TEST_TIMEOUT, "the request sends the ACK");
        pair.until_delayed(1);
        let before = sent();
        pair.ends[1].cq.arm(false);
        // The progress thread may have sent the ACK at the same time; then another one is tried.
        let is_delayed = sent() == before;
        pair.receive(0);
        pair.send(1);
        pair.await_message(0);
        if is_delayed {
            return;
        }
    }
}

#[test]
fn a_delayed_ack_is_sent_without_an_answer() {
    let _alone = alone();
    for round in 0..20 {
        let pair = match round % 2 {
            0 => PingPong::new(),
            _ => PingPong::with_events(),
        };
        pair.until_delayed(1);
        let start = Instant::now();
        // This thread neither posts nor polls, so only the progress thread can send the ACK and
        // receive it. It may have done so already.
        while pair.bytes_in_flight(0) > 0 {
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
