//! Completion queues `C` that need the progress thread: those whose notification is delayed (see
//! [`crate::scheduling::moderation`]), and those that overran.

use crate::ports::Waker;
use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use urxe_proto::time::Time;

/// The completion queues of an engine that need its progress thread.
#[derive(Debug)]
pub(crate) struct CqMonitor<C> {
    waker: Arc<Waker>,
    /// Each with the end of its delay. There are few: a queue is on the list once for each event.
    delayed: Mutex<Vec<(Time, Weak<C>)>>,
    /// The earliest end of a delay, to be read without a lock.
    next: AtomicU64,
    overran: Mutex<Vec<Arc<C>>>,
    /// Whether `overran` has entries; read without a lock.
    has_overrun: AtomicBool,
}

impl<C> CqMonitor<C> {
    pub(crate) fn new(waker: &Arc<Waker>) -> Self {
        CqMonitor {
            waker: Arc::clone(waker),
            delayed: Mutex::default(),
            next: AtomicU64::new(Time::NEVER.0),
            overran: Mutex::default(),
            has_overrun: AtomicBool::new(false),
        }
    }

    /// Records that a queue was armed for a notification.
    pub(crate) fn armed(&self) {
        self.waker.arm();
    }

    /// Records that a queue which is armed for a notification was armed again.
    pub(crate) fn rearmed(&self) {
        self.waker.rearm();
    }

    /// Records that the notification of a queue was delivered or cancelled.
    pub(crate) fn disarmed(&self) {
        self.waker.handoff().disarm();
    }

    /// Records that the notification of a queue is delayed until `until` at most.
    pub(crate) fn delay(&self, cq: &Arc<C>, until: Time) {
        let mut delayed = lock(&self.delayed);
        delayed.push((until, Arc::downgrade(cq)));
        self.note_next(&delayed);
        drop(delayed);
        self.waker.deadline_moved(until);
    }

    /// Returns the earliest end of a delay, or [`Time::NEVER`].
    pub(crate) fn next(&self) -> Time {
        Time(self.next.load(Ordering::Acquire))
    }

    /// Removes the queues whose delay has ended, and returns them.
    pub(crate) fn take_due(&self, now: Time) -> Vec<Arc<C>> {
        if self.next() > now {
            return Vec::new();
        }
        let mut delayed = lock(&self.delayed);
        let due: Vec<_> = delayed.extract_if(.., |(until, _)| *until <= now).collect();
        self.note_next(&delayed);
        drop(delayed);
        due.iter().filter_map(|(_, cq)| cq.upgrade()).collect()
    }

    fn note_next(&self, delayed: &[(Time, Weak<C>)]) {
        let next = delayed.iter().map(|(until, _)| *until).min();
        self.next
            .store(next.unwrap_or(Time::NEVER).0, Ordering::Release);
    }

    /// Records that a queue overran: its queue pairs go to the error state.
    pub(crate) fn overran(&self, cq: Arc<C>) {
        lock(&self.overran).push(cq);
        self.has_overrun.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns whether a queue overran and [`CqMonitor::take_overran`] was not called since.
    pub(crate) fn has_overrun(&self) -> bool {
        self.has_overrun.load(Ordering::Acquire)
    }

    /// Removes the queues that overran, and returns them.
    pub(crate) fn take_overran(&self) -> Vec<Arc<C>> {
        if !self.has_overrun() {
            return Vec::new();
        }
        let mut overran = lock(&self.overran);
        self.has_overrun.store(false, Ordering::Release);
        std::mem::take(&mut *overran)
    }
}
