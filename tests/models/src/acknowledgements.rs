//! Acknowledgements that wait for the program's answer: each goes out, with the answer, with the program's next poll in
//! vain, or because the alarm goes off.

use crate::answering::Answering;
use crate::sync::lock;
use crate::system::{Timer, check, end, thread};
use crate::waiting::{Alarm, Waiting};
use loom::sync::Mutex;
use std::sync::Arc;
use urxe_proto::time::Time;

/// The time of all that happens: every answer comes soon.
const NOW: Time = Time(1_000_000_000);

/// How many messages arrive.
const ALL: u32 = 2;

/// Of a queue pair what decides which acknowledgements wait, and how many there are.
struct Qp(Mutex<Acks>);

struct Acks {
    answering: Answering,
    arrived: u32,
    acknowledged: u32,
}

struct Engine {
    qp: Arc<Qp>,
    waiting: Waiting<Arc<Qp>, Timer>,
}

impl Engine {
    /// With a queue pair whose program has answered often enough to be trusted.
    fn new() -> Arc<Self> {
        let mut answering = Answering::default();
        while !answering.holds(NOW, 0) {
            answering.posted(NOW, 0);
        }
        answering.posted(NOW, 0);
        answering.release();
        let acks = Acks {
            answering,
            arrived: 0,
            acknowledged: 0,
        };
        Arc::new(Engine {
            qp: Arc::new(Qp(Mutex::new(acks))),
            waiting: Waiting::with(Timer::new()),
        })
    }

    /// As `Qp::go_on` does.
    fn arrive(&self) {
        let mut acks = lock(&self.qp.0);
        acks.arrived += 1;
        if !acks.answering.holds(NOW, 0) {
            self.transmit(&mut acks);
            return;
        }
        let is_listed = acks.answering.list();
        drop(acks);
        let new = (!is_listed).then(|| Arc::clone(&self.qp));
        self.waiting.add_ack(new, NOW);
    }

    /// As the end of a posting does.
    fn answer(&self) {
        let mut acks = lock(&self.qp.0);
        acks.answering.posted(NOW, 0);
        self.transmit(&mut acks);
    }

    /// As `Qp::send_held` does.
    fn send_held(&self, qp: &Qp) {
        let mut acks = lock(&qp.0);
        if acks.answering.unlist() {
            self.transmit(&mut acks);
        }
    }

    fn transmit(&self, acks: &mut Acks) {
        acks.answering.release();
        acks.acknowledged = acks.arrived;
        if acks.acknowledged == ALL {
            // Whoever waits for the alarm shall see that.
            self.waiting.alarm().set(NOW);
        }
    }

    fn all_are_acknowledged(&self) -> bool {
        lock(&self.qp.0).acknowledged == ALL
    }
}

/// A thread polls, answers once, and does not come back; another one receives for the same queue pair, and polls in
/// vain afterwards.
pub fn acknowledgements_go_out_though_no_answer_comes() {
    check(3, || {
        let engine = Engine::new();
        let answers = thread(&engine, |engine| {
            engine.arrive();
            engine.answer();
        });
        let polls = thread(&engine, |engine| {
            engine.arrive();
            engine.waiting.take_acks(|qp| engine.send_held(&qp));
        });
        while !engine.all_are_acknowledged() {
            engine.waiting.alarm().wait();
            let send = |qp: Arc<Qp>| engine.send_held(&qp);
            engine.waiting.take_left_lying(send, |_| ());
        }
        end(answers);
        end(polls);
    });
}

/// A thread polls, and does not come back.
pub fn acknowledgements_that_are_left_lying_go_out() {
    check(100, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            engine.arrive();
            engine.answer();
            engine.arrive();
        });
        while !engine.all_are_acknowledged() {
            engine.waiting.alarm().wait();
            let send = |qp: Arc<Qp>| engine.send_held(&qp);
            engine.waiting.take_left_lying(send, |_| ());
        }
        end(program);
    });
}
