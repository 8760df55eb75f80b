//! Who looks after the network: the progress thread, or threads of the program.
//!
//! The progress thread sleeps through packets while the program is at it, and everybody sleeps until a deadline
//! that may be moved meanwhile. Nobody is woken without need, so one side looks at what the other has said. Each
//! *says first, and looks then*, with a fence between: the thread says how it sleeps and looks whether that is right
//! still; who changes something looks at how the thread sleeps, and wakes it. Of two that do
//! so at the same time, at least one sees the other. Which is all there is here: descriptors and sleeping are the caller's.

use crate::sync::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use crossbeam_utils::CachePadded;
use urxe_proto::time::Time;

/// How the thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Mode {
    /// Until a packet comes.
    Watching,
    /// The program polls.
    YieldingToPolls,
    /// Threads of the program wait, and come and go.
    YieldingToWaiters,
    /// Threads of the program wait, and have done so for a while.
    Parked,
}

/// What the two sides say.
#[derive(Debug)]
pub(super) struct Handover {
    mode: AtomicU8,
    /// When the thread wakes by itself; 0 while it is awake.
    asleep_until: AtomicU64,
    /// Threads of the program that wait in one of our calls.
    waiters: CachePadded<AtomicUsize>,
    /// How often one has come back.
    returns: AtomicU64,
    /// Completion queues that a program waits for.
    armed: CachePadded<AtomicUsize>,
}

impl Handover {
    pub(super) fn new() -> Self {
        Handover {
            mode: AtomicU8::new(Mode::Watching as u8),
            asleep_until: AtomicU64::new(0),
            waiters: CachePadded::new(AtomicUsize::new(0)),
            returns: AtomicU64::new(0),
            armed: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    /// The program is about to wait for a notification. If it does so in its own way, nobody but
    /// the thread will receive what brings it about. Whether the thread must be woken.
    #[must_use]
    pub(super) fn arm(&self) -> bool {
        self.armed.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is(Mode::YieldingToPolls)
    }

    /// The notification was given, or is not wanted any more.
    pub(super) fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a program waits for a notification.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) > 0
    }

    /// A thread of the program waits, and receives meanwhile.
    pub(super) fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    /// It goes back to the program. Whether the progress thread must be woken.
    #[must_use]
    pub(super) fn leave(&self) -> bool {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        self.returns.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is(Mode::Parked)
    }

    /// There is something to do at `at`, which others can see already. Whether the thread must be woken.
    #[must_use]
    pub(super) fn deadline_moved(&self, at: Time) -> bool {
        at != Time::NEVER && {
            fence(Ordering::SeqCst);
            at.0 < self.asleep_until.load(Ordering::Relaxed)
        }
    }

    /// How the thread sleeps next, where `polls` says that the program does so all the time, and `returns` is
    /// kept from one choice to the next.
    pub(super) fn choose(&self, polls: bool, returns: &mut u64) -> Mode {
        let now = self.returns.load(Ordering::Relaxed);
        let returned = std::mem::replace(returns, now) != now;
        let mode = if self.has_waiters() && !returned {
            Mode::Parked
        } else if self.has_waiters() || returned {
            Mode::YieldingToWaiters
        } else if polls && !self.is_armed() {
            Mode::YieldingToPolls
        } else {
            Mode::Watching
        };
        self.mode.store(mode as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Somebody who left, or armed, before the store did not know to wake us.
        let mode = match mode {
            Mode::Parked if !self.has_waiters() => Mode::YieldingToWaiters,
            Mode::YieldingToPolls if self.is_armed() => Mode::Watching,
            mode => return mode,
        };
        self.mode.store(mode as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        mode
    }

    /// Whether what waits already, for all to see, may wait on: the thread leaves packets to the program, and
    /// looks at what waits within a moment. In other modes it has looked after it had chosen them.
    pub(super) fn may_wait_for_look(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is(Mode::YieldingToPolls)
    }

    /// The thread is about to sleep, until `deadline` at most, which is when `next` said that there is
    /// something to do, or earlier. Until when it may sleep.
    pub(super) fn fall_asleep(&self, deadline: Time, next: impl FnOnce() -> Time) -> Time {
        self.asleep_until.store(deadline.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Who moved a deadline before the store did not know to wake us.
        deadline.min(next())
    }

    /// The thread has woken, and looks at deadlines before it sleeps again.
    pub(super) fn wake_up(&self) {
        self.asleep_until.store(0, Ordering::Relaxed);
    }

    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::Relaxed) == mode as u8
    }
}
