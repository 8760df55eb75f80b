//! Delayed ACKs: each is sent with the application's response, at the next empty poll or wait of
//! the application, or by the progress thread.

use crate::deferred::Deferred;
use crate::delayed_ack::DelayedAck;
use crate::handoff::{Handoff, Mode};
use crate::sync::lock;
use crate::system::{EventFd, Timer, check, join, thread};

use loom::sync::Mutex;
use std::sync::Arc;
use urxe_proto::time::Time;

/// The time of all events, so no response is too late for delayed ACKs.
const NOW: Time = Time(1_000_000_000);

/// The number of messages to each queue pair.
const MESSAGES: u32 = 2;

/// The part of a queue pair that decides whether ACKs are delayed, with counters.
struct Qp(Mutex<Acks>);

struct Acks {
    delayed_ack: DelayedAck,
    arrived: u32,
    acknowledged: u32,
}

struct Engine {
    qps: [Arc<Qp>; 2],
    waiting: Deferred<Arc<Qp>, Timer>,
    handoff: Handoff,
    /// Wakes the progress thread.
    wake: EventFd,
}

impl Engine {
    /// Returns an engine with two queue pairs whose applications have responded often enough for
    /// delayed ACKs. `expected` messages have yet to arrive at the first, the others at the second.
    fn new(expected: u32) -> Arc<Self> {
        let qp = |expected| {
            let mut delayed_ack = DelayedAck::default();
            while !delayed_ack.delays(NOW, 0) {
                delayed_ack.posted(NOW, 0);
            }
            delayed_ack.posted(NOW, 0);
            delayed_ack.release();
            let arrived = MESSAGES - expected;
            let acks = Acks {
                delayed_ack,
                arrived,
                acknowledged: arrived,
            };
            Arc::new(Qp(Mutex::new(acks)))
        };
        Arc::new(Engine {
            qps: [qp(expected), qp(MESSAGES - expected)],
            waiting: Deferred::with(Timer::new()),
            handoff: Handoff::new(),
            wake: EventFd::new(),
        })
    }

    /// Models the driver's `Delivery::answer`, with `Incoming::answer` and `Engine::delay_ack`, in
    /// a poll.
    fn arrive(&self, at: usize) {
        self.receive(at, false);
    }

    fn receive(&self, at: usize, is_waiter: bool) {
        let qp = &self.qps[at];
        let mut acks = lock(&qp.0);
        acks.arrived += 1;
        let may_delay = self.handoff.may_delay_acks(is_waiter);
        if !may_delay || !acks.delayed_ack.delays(NOW, 0) {
            self.transmit(&mut acks);
            return;
        }
        let is_listed = acks.delayed_ack.list();
        // The driver adds to the engine's list after it has released the queue pair.
        drop(acks);
        if !is_listed {
            self.waiting.add_ack(Arc::clone(qp));
            if !self.handoff.may_delay_acks(is_waiter) {
                self.send_delayed_ack(qp);
            }
        }
    }

    /// Models the end of a post.
    fn respond(&self) {
        let mut acks = lock(&self.qps[0].0);
        acks.delayed_ack.posted(NOW, 0);
        self.transmit(&mut acks);
    }

    /// Models `Qp::send_delayed_ack`.
    fn send_delayed_ack(&self, qp: &Qp) {
        let mut acks = lock(&qp.0);
        if acks.delayed_ack.remove_from_list() {
            self.transmit(&mut acks);
        }
    }

    fn transmit(&self, acks: &mut Acks) {
        acks.delayed_ack.release();
        acks.acknowledged = acks.arrived;
    }

    /// Models a wait of the application that the last of `messages` messages ends. Like the
    /// driver's `Waiter`, the thread wakes the progress thread if that is parked.
    fn wait(&self, at: usize, messages: u32) {
        assert!(self.handoff.enter(|| NOW), "no other thread waits");
        for message in 0..messages {
            if message > 0 {
                self.poll();
            }
            self.receive(at, true);
        }
        if self.handoff.leave(false, || NOW) {
            self.wake.write();
        }
    }

    /// Models an empty poll.
    fn poll(&self) {
        self.waiting.take_acks(|qp| self.send_delayed_ack(&qp));
    }

    /// Models the progress thread: it leaves packets to the polling application, and then finds
    /// that the application has stopped polling.
    fn run_progress_thread(&self) {
        let mut returns = 0;
        for polls in [true, false] {
            let mode = self.handoff.choose(polls, false, 0, &mut returns);
            assert_eq!(mode == Mode::PollersReceive, polls);
            self.poll();
        }
    }

    /// Models the progress thread beside an application that waits, until it receives itself.
    fn run_progress_thread_beside_waits(&self) {
        let mut returns = 0;
        loop {
            let mode = self.handoff.choose(false, false, 0, &mut returns);
            if !self.handoff.may_delay_acks(false) {
                self.poll();
            }
            match mode {
                Mode::Receiving => return,
                Mode::Parked => self.wake.wait(),
                Mode::PollersReceive | Mode::WaitersReceive => {}
            }
            self.poll();
        }
    }

    fn assert_all_are_acknowledged(&self) {
        for qp in &self.qps {
            let acks = lock(&qp.0);
            assert_eq!((acks.arrived, acks.acknowledged), (MESSAGES, MESSAGES));
        }
    }
}

/// One thread receives and responds once. Another receives for the same queue pair, and then makes
/// an empty poll.
pub fn delayed_acks_are_sent_without_a_response() {
    check(3, || {
        let engine = Engine::new(2);
        let answers = thread(&engine, |engine| {
            engine.arrive(0);
            engine.respond();
        });
        let polls = thread(&engine, |engine| {
            engine.arrive(0);
            engine.poll();
        });
        engine.run_progress_thread();
        join(answers);
        join(polls);
        engine.assert_all_are_acknowledged();
    });
}

/// Each thread receives for a queue pair of its own.
pub fn delayed_acks_of_two_queue_pairs_are_all_sent() {
    check(3, || {
        let engine = Engine::new(1);
        let receives = thread(&engine, |engine| engine.arrive(0));
        let polls = thread(&engine, |engine| {
            engine.arrive(1);
            engine.poll();
        });
        engine.run_progress_thread();
        join(receives);
        join(polls);
        engine.assert_all_are_acknowledged();
    });
}

/// A thread receives and does not call the library again.
pub fn progress_thread_sends_delayed_acks() {
    check(100, || {
        let engine = Engine::new(2);
        let program = thread(&engine, |engine| {
            engine.arrive(0);
            engine.respond();
            engine.arrive(0);
        });
        engine.run_progress_thread();
        join(program);
        engine.assert_all_are_acknowledged();
    });
}

/// A thread waits for each message, and responds only to the first.
pub fn acks_delayed_in_waits_are_sent() {
    check(3, || {
        let engine = Engine::new(2);
        let program = thread(&engine, |engine| {
            engine.wait(0, 1);
            engine.respond();
            engine.wait(0, 1);
        });
        engine.run_progress_thread_beside_waits();
        join(program);
        engine.assert_all_are_acknowledged();
    });
}

/// A thread receives two messages in one wait, and responds to none.
pub fn acks_delayed_in_one_wait_are_sent() {
    check(3, || {
        let engine = Engine::new(2);
        let program = thread(&engine, |engine| engine.wait(0, 2));
        engine.run_progress_thread_beside_waits();
        join(program);
        engine.assert_all_are_acknowledged();
    });
}
