//! Arming completion queues: a program that arms, polls and then sleeps misses no completion.

use crate::entries::{Added, Entries, Request};
use crate::handoff::{Handoff, Mode};
use crate::moderation::Moderation;
use crate::semaphore_queue::SemaphoreQueue;
use crate::system::{EventFd, ModelSemaphore, check, join, thread};
use std::sync::Arc;
use urxe_proto::time::Time;

/// A completion queue, its channel, and the hand-off to the progress thread.
struct Engine {
    handoff: Handoff,
    wakeup: EventFd,
    queue: Entries<u32>,
    channel: SemaphoreQueue<(), ModelSemaphore>,
}

impl Engine {
    fn new() -> Arc<Self> {
        Arc::new(Engine {
            handoff: Handoff::new(),
            wakeup: EventFd::new(),
            queue: Entries::new(4).expect("memory"),
            channel: SemaphoreQueue::with(ModelSemaphore::new()),
        })
    }

    /// Models `Cq::arm`.
    fn arm(&self) {
        match self.queue.arm(false) {
            Request::Armed => {
                if self.handoff.arm() {
                    self.wakeup.write();
                }
            }
            Request::Renewed => {
                if self.handoff.rearm() {
                    self.wakeup.write();
                }
            }
            Request::Notify { was_armed } => {
                if was_armed {
                    self.handoff.disarm();
                }
                self.channel.push(());
            }
        }
    }

    /// Models `Cq::push`.
    fn push(&self, completion: u32) {
        if self.queue.add(completion, false, false, Time::default) == Added::Notify {
            self.handoff.disarm();
            self.channel.push(());
        }
    }

    /// Models the progress thread, which must process packets while a queue is armed.
    fn watch(&self) {
        let mut returns = 0;
        while self.handoff.choose(true, false, 0, &mut returns) != Mode::Receiving {
            self.wakeup.wait();
        }
    }
}

/// A program arms, polls once more, and sleeps. Its completion comes from another polling thread,
/// or from the progress thread.
pub fn poll_after_arming_misses_no_completion() {
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            engine.arm();
            if engine.queue.take().is_none() {
                engine.channel.semaphore().wait();
                engine.channel.take(Some).expect("an event");
                engine.queue.take().expect("a completion");
            }
        });
        let polls = thread(&engine, |engine| engine.push(1));
        join(polls);
        join(program);
    });
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            engine.arm();
            // The count of armed queues must be right at the end, whichever comes first.
            engine.arm();
            engine.channel.semaphore().wait();
            engine.channel.take(Some).expect("an event");
            engine.queue.take().expect("a completion");
        });
        engine.watch();
        engine.push(1);
        join(program);
        assert_eq!(engine.handoff.is_armed(), engine.queue.disarm());
    });
}

/// A program arms and sleeps without a poll in between. Its completion may come before it arms.
pub fn arming_without_a_poll_misses_no_completion() {
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            engine.arm();
            engine.channel.semaphore().wait();
            engine.channel.take(Some).expect("an event");
            engine.queue.take().expect("a completion");
        });
        let polls = thread(&engine, |engine| engine.push(1));
        join(polls);
        join(program);
    });
}

/// A queue is destroyed when the delay of its notification ends: no event of it stays.
pub fn destroyed_queue_leaves_no_delayed_notification() {
    const PERIOD: u16 = 10;
    check(3, || {
        let engine = Engine::new();
        engine.queue.moderate(Moderation {
            count: 0,
            period: PERIOD,
        });
        engine.arm();
        let added = engine.queue.add(1, false, false, Time::default);
        let Added::NotifyAt(end) = added else {
            panic!("the notification is not delayed: {added:?}");
        };
        // Models `Cq::delay_ended`.
        let timer = thread(&engine, move |engine| {
            engine.queue.delay_ended(end, || {
                engine.handoff.disarm();
                engine.channel.push(());
            });
        });
        // Models `Cq::retire`.
        if engine.queue.disarm() {
            engine.handoff.disarm();
        }
        engine.channel.extract_if(|()| true);
        join(timer);
        assert!(!engine.handoff.is_armed());
        assert_eq!(engine.channel.semaphore().value(), 0);
    });
}

/// Another queue stays armed. The notification may precede the increment of the count of armed
/// queues, which must not disarm the other queue.
pub fn notification_before_the_count_leaves_others_armed() {
    check(4, || {
        let engine = Engine::new();
        assert!(!engine.handoff.arm());
        let arms = thread(&engine, Engine::arm);
        let pushes = thread(&engine, |engine| engine.push(1));
        engine.watch();
        join(arms);
        join(pushes);
        assert!(engine.handoff.is_armed());
        assert_eq!(
            engine.channel.semaphore().value() == 0,
            engine.queue.disarm()
        );
    });
}
