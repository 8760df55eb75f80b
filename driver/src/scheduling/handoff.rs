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
//!
//! Of the program's threads in blocking calls, one at a time is the receiver. It watches the
//! sockets and receives for all; the others sleep until their event. If all of them watched the
//! sockets, each packet would wake every one.

use super::limits::LONG_ABSENCE;
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use crossbeam_utils::CachePadded;
use urxe_proto::time::Time;

/// How long the progress thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Until a packet arrives.
    Receiving,
    /// Until some milliseconds after the program's last poll.
    PollersReceive,
    /// For a bounded time, while threads of the program enter and leave blocking calls.
    WaitersReceive,
    /// Until a timer expires or a thread wakes it: a thread of the program receives while it waits,
    /// and none that did has returned since the last choice.
    Parked,
}

/// The state that both sides share.
#[derive(Debug)]
pub(crate) struct Handoff {
    mode: AtomicU8,
    /// The time at which the progress thread's sleep ends, in nanoseconds; 0 while it is awake.
    asleep_until: AtomicU64,
    /// Whether one of the program's threads is the receiver.
    has_receiver: CachePadded<AtomicBool>,
    /// The number of the program's threads in a blocking call that are not the receiver.
    sleepers: CachePadded<AtomicUsize>,
    /// The number of times that a receiver has left.
    returns: AtomicU64,
    /// The time at which a receiver last left sleepers behind, in nanoseconds.
    left_at: AtomicU64,
    /// The mean of the last times from a receiver's leave to the next receiver, in nanoseconds.
    mean_absence: AtomicU64,
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
            has_receiver: CachePadded::new(AtomicBool::new(false)),
            sleepers: CachePadded::new(AtomicUsize::new(0)),
            returns: AtomicU64::new(0),
            left_at: AtomicU64::new(0),
            mean_absence: AtomicU64::new(0),
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

    /// Begins a blocking call. Returns whether the thread is the receiver. The progress thread need
    /// not be woken: until its next choice it receives as well.
    pub(crate) fn enter(&self, now: impl FnOnce() -> Time) -> bool {
        // Before the attempt: a receiver that leaves meanwhile sees this thread, or this thread
        // takes its place.
        let others = self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (none, one) = (false, true);
        let relaxed = Ordering::Relaxed;
        if (self
            .has_receiver
            .compare_exchange(none, one, relaxed, relaxed))
        .is_err()
        {
            return false;
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        if others > 0 {
            self.end_absence(now());
        }
        true
    }

    /// Ends the blocking call of a thread that is not the receiver.
    pub(crate) fn leave_asleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the blocking call of the receiver, and returns whether the progress thread must be
    /// woken. `polls_memory` is whether the program is expected to poll memory next.
    ///
    /// The next call of the program usually follows soon, and then its thread is the receiver. If
    /// that has taken long, others that wait need the progress thread meanwhile.
    #[must_use]
    pub(crate) fn leave(&self, polls_memory: bool, now: impl FnOnce() -> Time) -> bool {
        self.vacate();
        if self.is(Mode::Parked) || (polls_memory && self.is(Mode::WaitersReceive)) {
            return true;
        }
        if self.sleepers.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.left_at.store(now().0, Ordering::Relaxed);
        let mean = self.mean_absence.load(Ordering::Relaxed);
        u128::from(mean) > LONG_ABSENCE.as_nanos() && !self.is(Mode::Receiving)
    }

    /// Makes the receiver a thread that only sleeps, if others wait. Returns whether it did: then
    /// the progress thread must be woken, since none of them becomes the receiver before its next
    /// blocking call.
    #[must_use]
    pub(crate) fn resign(&self) -> bool {
        let has_others = self.sleepers.load(Ordering::Relaxed) > 0;
        if has_others {
            self.sleepers.fetch_add(1, Ordering::Relaxed);
            self.vacate();
        }
        has_others
    }

    fn vacate(&self) {
        self.has_receiver.store(false, Ordering::Relaxed);
        self.returns.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Adds the time since the last receiver left to the mean, an eighth of which is new.
    fn end_absence(&self, now: Time) {
        let took = now.0.saturating_sub(self.left_at.load(Ordering::Relaxed));
        let mean = self.mean_absence.load(Ordering::Relaxed);
        let mean = mean - mean / 8 + took / 8;
        self.mean_absence.store(mean, Ordering::Relaxed);
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
        let mode = if self.only_sleepers() {
            Mode::Receiving
        } else if self.has_receiver() && !returned {
            Mode::Parked
        } else if self.has_receiver() || (returned && !polls_memory) {
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
            Mode::Parked | Mode::WaitersReceive | Mode::PollersReceive if self.only_sleepers() => {
                Mode::Receiving
            }
            Mode::Parked if !self.has_receiver() => Mode::WaitersReceive,
            Mode::PollersReceive if self.may_sleep(ignored_arms) => Mode::Receiving,
            mode => return mode,
        };
        self.mode.store(mode as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        mode
    }

    /// Returns whether work that is already visible may wait for the program's next poll: the
    /// progress thread leaves packets to polls, and checks some milliseconds after the last one. In
    /// the other modes it has done all pending work after it stored the mode.
    pub(crate) fn leaves_packets_to_polls(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is(Mode::PollersReceive)
    }

    /// Returns whether an ACK may be delayed: the program's polls send it, or the progress thread
    /// some milliseconds after the last poll or wait. `is_waiter` says that the calling thread is
    /// the receiver, and sends the ACK itself before it sleeps again: then the progress thread may
    /// also be parked, since the thread wakes it in [`Handoff::leave`].
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

    /// Returns whether a thread of the program receives while it waits.
    pub(crate) fn has_receiver(&self) -> bool {
        self.has_receiver.load(Ordering::Relaxed)
    }

    /// Returns whether threads of the program wait, and none of them receives.
    fn only_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0 && !self.has_receiver()
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::Relaxed) == mode as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const BEGIN: Time = Time(1_000_000_000);

    /// A receiver and another thread wait.
    fn with_two_waiting() -> Handoff {
        let handoff = Handoff::new();
        assert!(handoff.enter(|| BEGIN));
        assert!(!handoff.enter(|| BEGIN));
        handoff
    }

    /// A receiver leaves, and the next one enters after this time, for a number of times. Another
    /// thread waits meanwhile.
    fn leave_for(handoff: &Handoff, absence: Duration, times: u32) {
        for _ in 0..times {
            let _ = handoff.leave(false, || BEGIN);
            assert!(handoff.enter(|| BEGIN + absence));
        }
    }

    #[test]
    fn one_of_the_threads_that_wait_receives() {
        let handoff = with_two_waiting();
        let _ = handoff.leave(false, || BEGIN);
        assert!(handoff.enter(|| BEGIN));
    }

    #[test]
    fn progress_thread_receives_while_threads_only_sleep() {
        let handoff = with_two_waiting();
        let mut returns = 0;
        assert_eq!(handoff.choose(false, false, 0, &mut returns), Mode::Parked);
        assert!(handoff.leave(false, || BEGIN));
        for polls in [true, false] {
            let mode = handoff.choose(polls, false, 0, &mut returns);
            assert_eq!(mode, Mode::Receiving);
        }
        handoff.leave_asleep();
        assert_eq!(
            handoff.choose(true, false, 0, &mut returns),
            Mode::PollersReceive
        );
    }

    #[test]
    fn receiver_resigns_only_if_others_wait() {
        let handoff = Handoff::new();
        assert!(handoff.enter(|| BEGIN));
        assert!(!handoff.resign());
        assert!(!handoff.enter(|| BEGIN));
        assert!(handoff.resign());
        // The next call of the other one makes it the receiver.
        handoff.leave_asleep();
        assert!(handoff.enter(|| BEGIN));
    }

    #[test]
    fn receivers_that_stay_away_wake_the_progress_thread_when_they_leave() {
        let handoff = with_two_waiting();
        let mut returns = 0;
        leave_for(&handoff, Duration::from_micros(10), 10);
        let mode = handoff.choose(false, false, 0, &mut returns);
        assert_eq!(mode, Mode::WaitersReceive);
        assert!(!handoff.leave(false, || BEGIN));
        assert!(handoff.enter(|| BEGIN));
        leave_for(&handoff, Duration::from_millis(10), 1);
        assert!(handoff.leave(false, || BEGIN));
        assert!(handoff.enter(|| BEGIN));
        leave_for(&handoff, Duration::from_micros(10), 50);
        assert!(!handoff.leave(false, || BEGIN));
    }
}
