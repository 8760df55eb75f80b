//! The lists of those who wait for the program to come back, and the alarm for when it does not.
//!
//! Whoever is on a list is taken off by the program's next call, or by the progress thread: sends once the alarm has
//! gone off, which is set, or has gone off and was not heard yet, while any of them wait; acknowledgements when it looks
//! in, as it does often while any of them may wait ([`Handover::may_wait_for_look`]).
//!
//! [`Handover::may_wait_for_look`]: super::handover::Handover::may_wait_for_look

use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;
use std::time::Duration;
use urxe_proto::time::Time;

/// For how long they wait at least, and twice that at most, for a program that does not come back.
const PATIENCE: Duration = Duration::from_micros(100);

/// Goes off once each time that it is set. The progress thread watches it.
pub(super) trait Alarm {
    /// Sets it, or puts it off.
    fn set(&self, at: Time);

    /// It has gone off, unless it was put off at this moment.
    fn silence(&self);
}

/// The lists and the alarm.
#[derive(Debug)]
pub(super) struct Waiting<T, A> {
    lists: Mutex<Lists<T>>,
    /// Whether there are any with sends, to be read without a lock.
    any_sends: CachePadded<AtomicBool>,
    /// The same of acknowledgements.
    any_acks: CachePadded<AtomicBool>,
    alarm: A,
}

#[derive(Debug)]
struct Lists<T> {
    /// Those with sends.
    sends: VecDeque<T>,
    /// Those with acknowledgements.
    acks: Vec<T>,
    /// When the alarm goes off; 0 when it is not known to.
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

    /// Sends have begun to wait at `now`: those of `new`, or of one that is on the list already.
    pub(super) fn add(&self, new: Option<T>, now: Time) {
        let mut lists = lock(&self.lists);
        if let Some(new) = new {
            lists.sends.push_back(new);
            self.any_sends.store(true, Ordering::Release);
        }
        // Under the lock, so that what is noted is what the alarm has.
        if lists.alarm_at < now + PATIENCE {
            lists.alarm_at = now + 2 * PATIENCE;
            self.alarm.set(lists.alarm_at);
        }
    }

    /// An acknowledgement has begun to wait, without an alarm.
    pub(super) fn add_ack(&self, new: T) {
        lock(&self.lists).acks.push(new);
        self.any_acks.store(true, Ordering::Release);
    }

    /// Takes those with sends off their list, and hands each to `send` with no lock held.
    pub(super) fn take_all(&self, mut send: impl FnMut(T)) {
        // Others may go on adding: no more than there are now.
        for _ in 0..self.len() {
            let Some(taken) = self.take() else {
                return;
            };
            send(taken);
        }
    }

    /// The same of those with acknowledgements.
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

    /// The same of those with sends when the alarm has gone off, which is silenced.
    pub(super) fn take_left_lying(&self, send: impl FnMut(T)) {
        self.alarm.silence();
        // Whoever is added from now on sets it anew; who was before is on a list.
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
