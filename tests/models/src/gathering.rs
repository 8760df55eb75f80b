//! Sends that wait for more: each goes out, with the program's next call or because the alarm goes off.

use crate::gathered::Gathered;
use crate::sync::lock;
use crate::system::{Timer, check, end, thread};
use crate::waiting::{Alarm, Waiting};
use loom::sync::Mutex;
use std::sync::Arc;
use urxe_proto::time::Time;

/// The time of all that happens: everything follows closely.
const NOW: Time = Time(1_000_000_000);

/// Of a queue pair what decides which sends wait, and how many there are.
struct Qp(Mutex<Sends>);

#[derive(Default)]
struct Sends {
    gathered: Gathered,
    posted: u32,
    sent: u32,
}

/// How many are posted in all.
const ALL: u32 = 4;

impl Sends {
    fn all_are_sent(&self) -> bool {
        self.posted == ALL && self.sent == ALL
    }
}

struct Engine {
    qp: Arc<Qp>,
    waiting: Waiting<Arc<Qp>, Timer>,
}

impl Engine {
    /// With a queue pair that has posted enough for the next one to wait.
    fn new() -> Arc<Self> {
        let engine = Arc::new(Engine {
            qp: Arc::new(Qp(Mutex::new(Sends::default()))),
            waiting: Waiting::with(Timer::new()),
        });
        for _ in 0..2 {
            assert!(!engine.post());
        }
        engine
    }

    /// Whether it waits.
    fn post(&self) -> bool {
        let mut sends = lock(&self.qp.0);
        sends.posted += 1;
        let waits = sends.gathered.wait(NOW, 0, (1, 64), |is_listed| {
            let new = (!is_listed).then(|| Arc::clone(&self.qp));
            self.waiting.add(new, NOW);
        });
        if !waits {
            self.transmit(&mut sends);
            sends.gathered.posted(NOW);
        }
        waits
    }

    fn send(&self, qp: &Qp) {
        let mut sends = lock(&qp.0);
        if sends.gathered.unlist() {
            self.transmit(&mut sends);
        }
    }

    fn transmit(&self, sends: &mut Sends) {
        sends.gathered.release();
        sends.sent = sends.posted;
        if sends.all_are_sent() {
            // Whoever waits for the alarm shall see that.
            self.waiting.alarm().set(NOW);
        }
    }

    fn poll(&self) {
        self.waiting.take_all(|qp| self.send(&qp));
    }

    fn all_are_sent(&self) -> bool {
        lock(&self.qp.0).all_are_sent()
    }
}

/// The progress thread sleeps until the alarm goes off, for as long as something is left.
fn send_left_lying(engine: &Engine) {
    while !engine.all_are_sent() {
        engine.waiting.alarm().wait();
        engine.waiting.take_left_lying(|qp| engine.send(&qp));
    }
}

/// A program posts, and does not come back.
pub fn sends_that_are_left_lying_go_out() {
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            assert!(engine.post());
            assert!(engine.post());
        });
        send_left_lying(&engine);
        end(program);
    });
}

/// One thread posts while another polls, and neither comes back.
pub fn sends_go_out_though_another_thread_takes_them_off_the_list() {
    check(3, || {
        let engine = Engine::new();
        let posts = thread(&engine, |engine| {
            engine.post();
            engine.post();
        });
        let polls = thread(&engine, Engine::poll);
        send_left_lying(&engine);
        end(posts);
        end(polls);
    });
}
