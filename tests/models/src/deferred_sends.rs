//! Send coalescing: each deferred send is sent by the application's next call or at the flush
//! timeout.

use crate::coalescing::Coalescing;
use crate::deferred::Deferred;
use crate::one_shot::OneShotTimer;
use crate::sync::lock;
use crate::system::{Timer, check, join, thread};

use loom::sync::Mutex;
use std::sync::Arc;
use urxe_proto::time::Time;

/// The time of all events, so every call is in time.
const NOW: Time = Time(1_000_000_000);

/// The part of a queue pair that decides which sends are deferred, with counters.
struct Qp(Mutex<Sends>);

#[derive(Default)]
struct Sends {
    coalescing: Coalescing,
    posted: u32,
    sent: u32,
}

/// The total number of posts.
const ALL: u32 = 4;

impl Sends {
    fn all_are_sent(&self) -> bool {
        self.posted == ALL && self.sent == ALL
    }
}

struct Engine {
    qp: Arc<Qp>,
    waiting: Deferred<Arc<Qp>, Timer>,
}

impl Engine {
    /// Returns an engine whose queue pair defers the next send.
    fn new() -> Arc<Self> {
        let engine = Arc::new(Engine {
            qp: Arc::new(Qp(Mutex::new(Sends::default()))),
            waiting: Deferred::with(Timer::new()),
        });
        for _ in 0..2 {
            assert!(!engine.post());
        }
        engine
    }

    /// Posts a send, and returns whether it is deferred.
    fn post(&self) -> bool {
        let mut sends = lock(&self.qp.0);
        sends.posted += 1;
        let waits = sends.coalescing.defer(NOW, 0, (1, 64), |is_listed| {
            let new = (!is_listed).then(|| Arc::clone(&self.qp));
            self.waiting.add(new, NOW);
        });
        if !waits {
            self.transmit(&mut sends);
            sends.coalescing.posted(|| NOW);
        }
        waits
    }

    fn send(&self, qp: &Qp) {
        let mut sends = lock(&qp.0);
        if sends.coalescing.remove_from_list() {
            self.transmit(&mut sends);
        }
    }

    fn transmit(&self, sends: &mut Sends) {
        sends.coalescing.release();
        sends.sent = sends.posted;
        if sends.all_are_sent() {
            // Wakes the progress thread, which waits for the timer.
            self.waiting.timer().set(NOW);
        }
    }

    fn poll(&self) {
        self.waiting.take_all(|qp| self.send(&qp));
    }

    fn all_are_sent(&self) -> bool {
        lock(&self.qp.0).all_are_sent()
    }
}

/// Models the progress thread, which sleeps until the flush timeout while sends are deferred.
fn run_flush_timeouts(engine: &Engine) {
    while !engine.all_are_sent() {
        engine.waiting.timer().wait();
        engine.waiting.take_expired(|qp| engine.send(&qp));
    }
}

/// A program posts and does not call the library again.
pub fn deferred_sends_are_flushed_at_the_timeout() {
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            assert!(engine.post());
            assert!(engine.post());
        });
        run_flush_timeouts(&engine);
        join(program);
    });
}

/// One thread posts while another polls, and neither calls the library again.
pub fn deferred_sends_are_flushed_while_another_thread_polls() {
    check(3, || {
        let engine = Engine::new();
        let posts = thread(&engine, |engine| {
            engine.post();
            engine.post();
        });
        let polls = thread(&engine, Engine::poll);
        run_flush_timeouts(&engine);
        join(posts);
        join(polls);
    });
}
