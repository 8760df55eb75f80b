//! Acknowledgements that wait for the program's answer: each goes out, with the answer, with the program's next poll in
//! vain, or because the progress thread looks.

use crate::answering::Answering;
use crate::handover::{Handover, Mode};
use crate::sync::lock;
use crate::system::{Timer, check, end, thread};
use crate::waiting::Waiting;
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
    handover: Handover,
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
            handover: Handover::new(),
        })
    }

    /// As `Qp::go_on` does.
    fn arrive(&self, at: usize) {
        let qp = &self.qps[at];
        let mut acks = lock(&qp.0);
        acks.arrived += 1;
        if !self.handover.may_wait_for_look() || !acks.answering.holds(NOW, 0) {
            self.transmit(&mut acks);
            return;
        }
        if !acks.answering.list() {
            self.waiting.add_ack(Arc::clone(qp));
            if !self.handover.may_wait_for_look() {
                self.transmit(&mut acks);
            }
        }
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
    }

    /// As polls in vain do.
    fn poll(&self) {
        self.waiting.take_acks(|qp| self.send_held(&qp));
    }

    /// As the progress thread does: it leaves packets to the program for a moment, and looks then; it finds that the
    /// program polls no more, and sleeps for good.
    fn look(&self) {
        let mut returns = 0;
        for polls in [true, false] {
            let mode = self.handover.choose(polls, &mut returns);
            assert_eq!(mode == Mode::YieldingToPolls, polls);
            self.poll();
        }
    }

    fn assert_all_are_acknowledged(&self) {
        for qp in &self.qps {
            let acks = lock(&qp.0);
            assert_eq!((acks.arrived, acks.acknowledged), (ALL, ALL));
        }
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
            engine.poll();
        });
        engine.look();
        end(answers);
        end(polls);
        engine.assert_all_are_acknowledged();
    });
}

/// The same for a queue pair each.
pub fn acknowledgements_of_one_do_not_hide_those_of_another() {
    check(3, || {
        let engine = Engine::new(1);
        let receives = thread(&engine, |engine| engine.arrive(0));
        let polls = thread(&engine, |engine| {
            engine.arrive(1);
            engine.poll();
        });
        engine.look();
        end(receives);
        end(polls);
        engine.assert_all_are_acknowledged();
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
        engine.look();
        end(program);
        engine.assert_all_are_acknowledged();
    });
}
