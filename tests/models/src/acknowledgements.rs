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

/// How many messages arrive at each queue pair.
const ALL: u32 = 2;

/// Of a queue pair what decides which acknowledgements wait, and how many there are.
struct Qp(Mutex<Acks>);

struct Acks {
    answering: Answering,
    arrived: u32,
    acknowledged: u32,
}

struct Engine {
    qps: [Arc<Qp>; 2],
    waiting: Waiting<Arc<Qp>, Timer>,
}

impl Engine {
    /// With queue pairs whose program has answered often enough to be trusted, at the first of which all
    /// but `expected` messages have arrived, and at the second all.
    fn new(expected: u32) -> Arc<Self> {
        let qp = |expected| {
            let mut answering = Answering::default();
            while !answering.holds(NOW, 0) {
                answering.posted(NOW, 0);
            }
            answering.posted(NOW, 0);
            answering.release();
            let arrived = ALL - expected;
            let acks = Acks {
                answering,
                arrived,
                acknowledged: arrived,
            };
            Arc::new(Qp(Mutex::new(acks)))
        };
        Arc::new(Engine {
            qps: [qp(expected), qp(ALL - expected)],
            waiting: Waiting::with(Timer::new()),
        })
    }

    /// As `Qp::go_on` does.
    fn arrive(&self, at: usize) {
        let qp = &self.qps[at];
        let mut acks = lock(&qp.0);
        acks.arrived += 1;
        if !acks.answering.holds(NOW, 0) {
            self.transmit(&mut acks);
            return;
        }
        let is_listed = acks.answering.list();
        drop(acks);
        let new = (!is_listed).then(|| Arc::clone(qp));
        self.waiting.add_ack(new, NOW);
    }

    /// As the end of a posting does.
    fn answer(&self) {
        let mut acks = lock(&self.qps[0].0);
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
        (self.qps.iter()).all(|qp| lock(&qp.0).acknowledged == ALL)
    }
}

/// The progress thread sleeps until the alarm goes off, for as long as something is left.
fn send_left_lying(engine: &Engine) {
    while !engine.all_are_acknowledged() {
        engine.waiting.alarm().wait();
        let send = |qp: Arc<Qp>| engine.send_held(&qp);
        engine.waiting.take_left_lying(send, |_| ());
    }
}

/// A thread polls, answers once, and does not come back; another one receives for the same queue pair, and polls in
/// vain afterwards.
pub fn acknowledgements_go_out_though_no_answer_comes() {
    check(3, || {
        let engine = Engine::new(2);
        let answers = thread(&engine, |engine| {
            engine.arrive(0);
            engine.answer();
        });
        let polls = thread(&engine, |engine| {
            engine.arrive(0);
            engine.waiting.take_acks(|qp| engine.send_held(&qp));
        });
        send_left_lying(&engine);
        end(answers);
        end(polls);
    });
}

/// The same for a queue pair each.
pub fn acknowledgements_of_one_do_not_hide_those_of_another() {
    check(3, || {
        let engine = Engine::new(1);
        let receives = thread(&engine, |engine| engine.arrive(0));
        let polls = thread(&engine, |engine| {
            engine.arrive(1);
            engine.waiting.take_acks(|qp| engine.send_held(&qp));
        });
        send_left_lying(&engine);
        end(receives);
        end(polls);
    });
}

/// A thread polls, and does not come back.
pub fn acknowledgements_that_are_left_lying_go_out() {
    check(100, || {
        let engine = Engine::new(2);
        let program = thread(&engine, |engine| {
            engine.arrive(0);
            engine.answer();
            engine.arrive(0);
        });
        send_left_lying(&engine);
        end(program);
    });
}
