//! The lists of queue pairs with deferred sends or held acknowledgements, and the flush timer.
//!
//! The program's next call takes a queue pair off its list; otherwise the progress thread does.
//! Invariants:
//!
//! - While sends are deferred, the flush timer is armed, or has expired and is not yet handled.
//! - Acknowledgements are held only while the progress thread checks every few milliseconds
//!   ([`Handover::may_wait_for_look`]); its check sends them.
//!
//! [`Handover::may_wait_for_look`]: super::handover::Handover::may_wait_for_look

use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;
use std::time::Duration;
use urxe_proto::time::Time;

/// The least time until the flush timer expires. The longest is twice that.
const PATIENCE: Duration = Duration::from_micros(100);

/// A one-shot timer, which the progress thread watches.
pub(super) trait Alarm {
    /// Arms it for `at`, or moves it there.
    fn set(&self, at: Time);

    /// Clears its expiry, if it was not moved at the same time.
    fn silence(&self);
}

/// The lists and the flush timer.
#[derive(Debug)]
pub(super) struct Waiting<T, A> {
    lists: Mutex<Lists<T>>,
    /// Whether the list of deferred sends has entries; read without a lock.
    any_sends: CachePadded<AtomicBool>,
    /// Whether the list of held acknowledgements has entries; read without a lock.
    any_acks: CachePadded<AtomicBool>,
    alarm: A,
}

#[derive(Debug)]
struct Lists<T> {
    /// Those with deferred sends.
    sends: VecDeque<T>,
    /// Those with held acknowledgements.
    acks: Vec<T>,
    /// When the flush timer expires; 0 when it is not known to be armed.
    alarm_at: Time,
}

impl<T, A: Alarm> Waiting<T, A> {
    pub(super) fn with(alarm: A) -> Self {
        Waiting {
            lists: Mutex::new(Lists {
                sends: VecDeque::new(),
                acks: Vec::new(),
                alarm_at: Time::default(),
            }),
            any_sends: CachePadded::new(AtomicBool::new(false)),
            any_acks: CachePadded::new(AtomicBool::new(false)),
            alarm,
        }
    }

    pub(super) fn alarm(&self) -> &A {
        &self.alarm
    }

    /// Notes that sends are deferred from `now` on: those of `new`, or of an entry of the list.
    pub(super) fn add(&self, new: Option<T>, now: Time) {
        let mut lists = lock(&self.lists);
        if let Some(new) = new {
            lists.sends.push_back(new);
            self.any_sends.store(true, Ordering::Release);
        }
        // With the lock held, so that `alarm_at` and the timer agree.
        if lists.alarm_at < now + PATIENCE {
            lists.alarm_at = now + 2 * PATIENCE;
            self.alarm.set(lists.alarm_at);
        }
    }

    /// Adds one with a held acknowledgement, without arming the timer.
    pub(super) fn add_ack(&self, new: T) {
        lock(&self.lists).acks.push(new);
        self.any_acks.store(true, Ordering::Release);
    }

    /// Takes those with deferred sends off their list, and passes each to `send` with no lock held.
    pub(super) fn take_all(&self, mut send: impl FnMut(T)) {
        // Other threads may keep adding entries; this takes no more than there are now.
        for _ in 0..self.len() {
            let Some(taken) = self.take() else {
                return;
            };
            send(taken);
        }
    }

    /// Takes those with held acknowledgements off their list, and passes each to `send` likewise.
    pub(super) fn take_acks(&self, send: impl FnMut(T)) {
        if !self.any_acks.load(Ordering::Acquire) {
            return;
        }
        let mut lists = lock(&self.lists);
        self.any_acks.store(false, Ordering::Release);
        let acks = std::mem::take(&mut lists.acks);
        drop(lists);
        acks.into_iter().for_each(send);
    }

    /// Handles an expiry of the flush timer: clears it, and takes those with deferred sends.
    pub(super) fn take_left_lying(&self, send: impl FnMut(T)) {
        self.alarm.silence();
        // An entry that is added from now on arms the timer again; earlier ones are on the list.
        lock(&self.lists).alarm_at = Time::default();
        self.take_all(send);
    }

    fn take(&self) -> Option<T> {
        let mut lists = lock(&self.lists);
        let taken = lists.sends.pop_front();
        if lists.sends.is_empty() {
            self.any_sends.store(false, Ordering::Release);
        }
        taken
    }

    fn len(&self) -> usize {
        match self.any_sends.load(Ordering::Acquire) {
            true => lock(&self.lists).sends.len(),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;

    impl Alarm for Silent {
        fn set(&self, _: Time) {}
        fn silence(&self) {}
    }

    #[test]
    fn the_alarm_is_put_off_and_set_seldom_while_the_program_posts() {
        let waiting = Waiting::with(Silent);
        let alarm_at = || lock(&waiting.lists).alarm_at;
        let start = Time(3_600_000_000_000);
        waiting.add(Some(()), start);
        let first = alarm_at();
        assert_eq!(first, start + 2 * PATIENCE);
        waiting.add(None, start + PATIENCE);
        assert_eq!(alarm_at(), first);
        let later = start + PATIENCE + Duration::from_nanos(1);
        waiting.add(None, later);
        assert_eq!(alarm_at(), later + 2 * PATIENCE);
    }
}
