//! The hand-off between callers and the progress thread, and deadlines that move as it falls
//! asleep.

use crate::handoff::{Handoff, Mode};
use crate::system::{EventFd, check, join, thread};
use crate::timers::Timers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;

struct Engine {
    handoff: Handoff,
    wakeup: EventFd,
    timers: Timers,
}

impl Engine {
    fn new() -> Arc<Self> {
        Arc::new(Engine {
            handoff: Handoff::new(),
            wakeup: EventFd::new(),
            timers: Timers::new(),
        })
    }

    fn wake_if(&self, must_be_woken: bool) {
        if must_be_woken {
            self.wakeup.write();
        }
    }

    fn arm_timer(&self, qpn: u32, at: Time) {
        if self.timers.add(Qpn::new(qpn), at) {
            self.wake_if(self.handoff.deadline_moved(at));
        }
    }
}

/// The time of blocking calls.
const NOW: Time = Time(0);

/// Whether some run of a model reached this state. A model that never reaches it proves nothing.
static PARKED: AtomicBool = AtomicBool::new(false);
static YIELDED: AtomicBool = AtomicBool::new(false);
static RESIGNED: AtomicBool = AtomicBool::new(false);
static OTHER_RECEIVES: AtomicBool = AtomicBool::new(false);

/// A parked thread sleeps until the receiver leaves and wakes it.
pub fn receiver_that_leaves_wakes_a_parked_thread() {
    // Two threads that call once, and one that calls repeatedly.
    check(2, || wait_and_leave(2, 1));
    check(3, || wait_and_leave(1, 2));
    assert!(PARKED.load(Ordering::Relaxed));
}

fn wait_and_leave(threads: usize, times: usize) {
    let engine = Engine::new();
    let come_and_go = |engine: &Engine| match engine.handoff.enter(|| NOW) {
        true => engine.wake_if(engine.handoff.leave(false, || NOW)),
        false => engine.handoff.leave_asleep(),
    };
    let waiters: Vec<_> = (0..threads)
        .map(|_| {
            thread(&engine, move |engine| {
                (0..times).for_each(|_| come_and_go(engine))
            })
        })
        .collect();
    let mut returns = 0;
    for _ in 0..3 {
        if engine.handoff.choose(false, false, 0, &mut returns) == Mode::Parked {
            PARKED.store(true, Ordering::Relaxed);
            engine.wakeup.wait();
        }
    }
    waiters.into_iter().for_each(join);
    // Without callers it does not park again.
    engine.handoff.choose(false, false, 0, &mut returns);
    assert_eq!(
        engine.handoff.choose(false, false, 0, &mut returns),
        Mode::Receiving
    );
}

/// A thread that waits while another one receives is not forgotten when that one resigns: the
/// progress thread receives, or the thread itself.
pub fn thread_that_waits_has_a_receiver() {
    check(3, || {
        let engine = Engine::new();
        assert!(engine.handoff.enter(|| NOW));
        let waiter = thread(&engine, |engine| {
            let receives = engine.handoff.enter(|| NOW);
            OTHER_RECEIVES.fetch_or(receives, Ordering::Relaxed);
        });
        let resigned = engine.handoff.resign();
        RESIGNED.fetch_or(resigned, Ordering::Relaxed);
        if !resigned {
            engine.wake_if(engine.handoff.leave(false, || NOW));
        }
        join(waiter);
        let mut returns = 0;
        let mode = engine.handoff.choose(false, false, 0, &mut returns);
        assert!(mode == Mode::Receiving || engine.handoff.has_receiver());
    });
    assert!(RESIGNED.load(Ordering::Relaxed) && OTHER_RECEIVES.load(Ordering::Relaxed));
}

/// Only the progress thread can wake a program that polls, arms and then sleeps.
pub fn arming_wakes_a_thread_that_yields_to_polls() {
    check(3, || {
        let engine = Engine::new();
        let program = thread(&engine, |engine| {
            engine.wake_if(engine.handoff.arm());
        });
        let mut returns = 0;
        // In the driver this state lasts at most a millisecond. Here the wake-up must not be lost.
        while engine.handoff.choose(true, false, 0, &mut returns) == Mode::PollersReceive {
            YIELDED.store(true, Ordering::Relaxed);
            engine.wakeup.wait();
        }
        assert!(engine.handoff.is_armed());
        join(program);
        engine.handoff.disarm();
        assert_eq!(
            engine.handoff.choose(true, false, 0, &mut returns),
            Mode::PollersReceive
        );
    });
    assert!(YIELDED.load(Ordering::Relaxed));
}

/// A program that went on polling after a request for a notification requests it again, and sleeps.
pub fn rearming_wakes_a_thread_that_yields_to_polls() {
    check(3, || {
        let engine = Engine::new();
        assert!(!engine.handoff.arm());
        let polled_since = engine.handoff.arms();
        let program = thread(&engine, |engine| {
            engine.wake_if(engine.handoff.rearm());
        });
        let mut returns = 0;
        let mut choose = || (engine.handoff).choose(true, false, polled_since, &mut returns);
        while choose() == Mode::PollersReceive {
            engine.wakeup.wait();
        }
        join(program);
    });
}

/// The progress thread sleeps no longer than until the earliest deadline.
pub fn thread_wakes_at_the_earliest_deadline() {
    const FIRST: Time = Time(30);
    check(3, || {
        let engine = Engine::new();
        let programs = [(1, Time(50)), (2, FIRST)]
            .map(|(qpn, at)| thread(&engine, move |engine| engine.arm_timer(qpn, at)));
        loop {
            let deadline = engine.timers.next();
            let until = engine
                .handoff
                .fall_asleep(deadline, || engine.timers.next());
            if until == FIRST {
                break;
            }
            // The earliest deadline is not set yet. The thread that sets it must wake this one.
            engine.wakeup.wait();
            engine.handoff.wake_up();
        }
        programs.into_iter().for_each(join);
        assert_eq!(engine.timers.take_due(FIRST), Some((FIRST, Qpn::new(2))));
        assert_eq!(engine.timers.next(), Time(50));
    });
}
