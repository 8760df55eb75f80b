//! The hand-off: either the progress thread or threads of the program receive.
//!
//! The progress thread sleeps through packets while the program receives, and each sleeping thread
//! has a deadline that another thread may move. To avoid needless wake-ups, a thread wakes the
//! progress thread only if its state requires that.
//!
//! Each side stores, fences (SeqCst), then loads. The progress thread stores how it sleeps, and
//! checks whether that is still right. A thread that changes a condition stores it, reads how the
//! progress thread sleeps, and wakes it. At least one of them sees the other's store, so no wake-up
//! is lost. This module holds only that protocol: descriptors and sleeping belong to the caller.

use crate::sync::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use crossbeam_utils::CachePadded;
use urxe_proto::time::Time;

/// How long the progress thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Until a packet arrives.
    Receiving,
    /// For a bounded time, while the program polls.
    PollersReceive,
    /// For a bounded time, while threads of the program enter and leave blocking calls.
    WaitersReceive,
    /// Until a timer expires or a thread wakes it: threads of the program wait, and none has
    /// returned since the last choice.
    Parked,
}

/// The state that both sides share.
#[derive(Debug)]
pub(crate) struct Handoff {
    mode: AtomicU8,
    /// The time at which the progress thread's sleep ends, in nanoseconds; 0 while it is awake.
    asleep_until: AtomicU64,
    /// The number of the program's threads that are in a blocking call.
    waiters: CachePadded<AtomicUsize>,
    /// The number of blocking calls that have ended.
    returns: AtomicU64,
    /// The number of completion queues that are armed for a notification.
    armed: CachePadded<AtomicUsize>,
    /// The number of requests for a notification so far.
    arms: AtomicU64,
}

impl Handoff {
    pub(crate) fn new() -> Self {
        Handoff {
            mode: AtomicU8::new(Mode::Receiving as u8),
            asleep_until: AtomicU64::new(0),
            waiters: CachePadded::new(AtomicUsize::new(0)),
            returns: AtomicU64::new(0),
            armed: CachePadded::new(AtomicUsize::new(0)),
            arms: AtomicU64::new(0),
        }
    }

    /// Increments the number of armed completion queues, and returns whether the progress thread
    /// must be woken. If the program sleeps outside urxe's calls, only the progress thread receives
    /// the packet that causes the notification.
    #[must_use]
    pub(crate) fn arm(&self) -> bool {
        self.armed.fetch_add(1, Ordering::Relaxed);
        self.rearm()
    }

    /// Records that the program requested the notification of an armed completion queue again, and
    /// returns whether the progress thread must be woken, as for [`Handoff::arm`].
    #[must_use]
    pub(crate) fn rearm(&self) -> bool {
        self.arms.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is(Mode::PollersReceive)
    }

    /// Returns the number of requests for a notification so far.
    pub(crate) fn arms(&self) -> u64 {
        self.arms.load(Ordering::Relaxed)
    }

    /// Decrements the number of armed completion queues: the notification was delivered or
    /// cancelled.
    pub(crate) fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether any completion queue is armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) > 0
    }

    /// Increments the number of waiting threads of the program, which receive while they wait. The
    /// progress thread need not be woken: until its next choice it receives as well.
    pub(crate) fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    /// Decrements the number of waiting threads, and returns whether the progress thread must be
    /// woken. `polls_memory` is whether the program is expected to poll memory next.
    #[must_use]
    pub(crate) fn leave(&self, polls_memory: bool) -> bool {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        self.returns.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is(Mode::Parked) || (polls_memory && self.is(Mode::WaitersReceive))
    }

    /// Returns whether the progress thread must be woken for work at `at`, which is already visible
    /// to it.
    #[must_use]
    pub(crate) fn deadline_moved(&self, at: Time) -> bool {
        at != Time::NEVER && {
            fence(Ordering::SeqCst);
            at.0 < self.asleep_until.load(Ordering::Relaxed)
        }
    }

    /// Chooses the mode of the next sleep. `polls` is whether the program polls all the time,
    /// `polls_memory` whether it polls memory between its calls. If [`Handoff::arms`] equals
    /// `ignored_arms`, the program went on polling after its last request for a notification, so it
    /// does not sleep until one. `returns` is state that the caller keeps from one choice to the
    /// next.
    pub(crate) fn choose(
        &self,
        polls: bool,
        polls_memory: bool,
        ignored_arms: u64,
        returns: &mut u64,
    ) -> Mode {
        let now = self.returns.load(Ordering::Relaxed);
        let returned = std::mem::replace(returns, now) != now;
        let mode = if self.has_waiters() && !returned {
            Mode::Parked
        } else if self.has_waiters() || (returned && !polls_memory) {
            Mode::WaitersReceive
        } else if polls && !self.may_sleep(ignored_arms) {
            Mode::PollersReceive
        } else {
            Mode::Receiving
        };
        self.mode.store(mode as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A thread that left or armed before the store has not woken the progress thread.
        let mode = match mode {
            Mode::Parked if !self.has_waiters() => Mode::WaitersReceive,
            Mode::PollersReceive if self.may_sleep(ignored_arms) => Mode::Receiving,
            mode => return mode,
        };
        self.mode.store(mode as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        mode
    }

    /// Returns whether work that is already visible may wait until the progress thread's next
    /// check: it leaves packets to the polling program, and checks every few milliseconds. In the
    /// other modes it has done all pending work after it stored the mode.
    pub(crate) fn leaves_packets_to_polls(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is(Mode::PollersReceive)
    }

    /// Returns whether an ACK may be delayed: the progress thread sleeps for a bounded time, and
    /// sends it after that. `is_waiter` says that the calling thread is one of the waiting threads,
    /// and sends the ACK itself before it sleeps again: then the progress thread may also be
    /// parked, since the thread wakes it in [`Handoff::leave`].
    ///
    /// In the other modes the progress thread has sent all delayed ACKs after it stored the mode.
    pub(crate) fn may_delay_acks(&self, is_waiter: bool) -> bool {
        fence(Ordering::SeqCst);
        self.is(Mode::PollersReceive)
            || self.is(Mode::WaitersReceive)
            || (is_waiter && self.is(Mode::Parked))
    }

    /// Stores that the thread sleeps until `deadline` at most, and returns the time until which it
    /// may sleep. `next` returns the time of the next work; `deadline` is that time as read before,
    /// or earlier.
    pub(crate) fn fall_asleep(&self, deadline: Time, next: impl FnOnce() -> Time) -> Time {
        self.asleep_until.store(deadline.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // A thread that moved a deadline before the store has not woken the progress thread.
        deadline.min(next())
    }

    /// Stores that the thread is awake; it reads the deadlines before it sleeps again.
    pub(crate) fn wake_up(&self) {
        self.asleep_until.store(0, Ordering::Relaxed);
    }

    /// Returns whether the program may sleep until the notification of a completion queue. See
    /// [`Handoff::choose`].
    fn may_sleep(&self, ignored_arms: u64) -> bool {
        self.is_armed() && self.arms() != ignored_arms
    }

    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::Relaxed) == mode as u8
    }
}
