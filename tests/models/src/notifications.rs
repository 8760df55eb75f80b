//! Completion queues that are armed while completions come: who sleeps in its own way hears of the next one.

use crate::counted::Counted;
use crate::entries::{Added, Entries};
use crate::handover::{Handover, Mode};
use crate::system::{Bell, Semaphore, check, end, thread};
use std::sync::Arc;
use urxe_proto::time::Time;

/// A completion queue, its channel, and of the engine what has to do with them.
struct Engine {
    handover: Handover,
    bell: Bell,
    queue: Entries<u32>,
    channel: Counted<(), Semaphore>,
}

impl Engine {
    fn new() -> Arc<Self> {
        Arc::new(Engine {
            handover: Handover::new(),
            bell: Bell::new(),
            queue: Entries::new(4).expect("memory"),
            channel: Counted::with(Semaphore::new()),
        })
    }

    /// As `Cq::arm` does.
    fn arm(&self) {
        if self.queue.arm(false) && self.handover.arm() {
            self.bell.ring();
        }
    }

    /// As `Cq::push` does.
    fn push(&self, completion: u32) {
        if self.queue.add(completion, false, false, Time::default) == Added::Notify {
            self.handover.disarm();
            self.channel.push(());
        }
    }

    /// The progress thread comes to watch for packets, as it must while a queue is armed.
    fn watch(&self) {
        let mut returns = 0;
        while self.handover.choose(true, &mut returns) != Mode::Watching {
            self.bell.wait();
        }
    }
}

/// As the verbs want it: a program arms, looks once more, and sleeps. Its completions come by the progress thread,
/// or by another thread that polls.
pub fn who_arms_and_looks_again_misses_nothing() {
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            engine.arm();
            if engine.queue.take().is_none() {
                engine.channel.count().wait();
                engine.channel.take(Some).expect("an event");
                engine.queue.take().expect("a completion");
            }
        });
        let polls = thread(&engine, |engine| engine.push(1));
        end(polls);
        end(program);
    });
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            engine.arm();
            // Whether it comes in between or not, at the end nobody is counted.
            engine.arm();
            engine.channel.count().wait();
            engine.channel.take(Some).expect("an event");
            engine.queue.take().expect("a completion");
        });
        engine.watch();
        engine.push(1);
        end(program);
        assert_eq!(engine.handover.is_armed(), engine.queue.disarm());
    });
}

/// Another queue is armed already, and stays so: that this one's notification may be given before its wish for it
/// is counted does not matter.
pub fn a_notification_that_overtakes_its_wish_leaves_others_armed() {
    check(4, || {
        let engine = Engine::new();
        assert!(!engine.handover.arm());
        let arms = thread(&engine, Engine::arm);
        let pushes = thread(&engine, |engine| engine.push(1));
        engine.watch();
        end(arms);
        end(pushes);
        assert!(engine.handover.is_armed());
        assert_eq!(engine.channel.count().value() == 0, engine.queue.disarm());
    });
}
