//! The lists of queue pairs with deferred sends or delayed ACKs, and the flush timer.
//!
//! The program's next poll with the queue pair's affinity sends the deferred sends. Its next poll
//! that finds no completion sends the delayed ACKs, and its next blocking wait sends both. So does
//! a post that fills the batch, or the end of the queue pair.
//!
//! If the program makes no such call, the flush timer wakes the progress thread, which sends the
//! deferred sends. While the program keeps posting, the timer is moved before it expires. That
//! costs a system call in 100 us, and no wake-up.
//!
//! Invariants:
//!
//! - While sends are deferred, the flush timer is armed, or has expired and is not yet handled.
//! - ACKs are delayed only while the progress thread checks some milliseconds after the last poll
//!   or wait, or is about to be woken ([`Handoff::may_delay_acks`]); its check sends them.
//!
//! [`Handoff::may_delay_acks`]: super::handoff::Handoff::may_delay_acks

use super::limits::FLUSH_TIMEOUT;
use super::one_shot::OneShotTimer;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;
use urxe_proto::time::Time;

/// The lists of queue pairs `T`, and the flush timer `A`.
#[derive(Debug)]
pub(crate) struct Deferred<T, A> {
    lists: Mutex<Lists<T>>,
    /// Whether the list of deferred sends has entries; read without a lock.
    has_sends: CachePadded<AtomicBool>,
    /// Whether the list of delayed ACKs has entries; read without a lock.
    has_acks: CachePadded<AtomicBool>,
    timer: A,
}

#[derive(Debug)]
struct Lists<T> {
    /// The queue pairs with deferred sends.
    sends: VecDeque<T>,
    /// The queue pairs with delayed ACKs.
    acks: Vec<T>,
    /// When the flush timer expires; 0 when it is not known to be armed.
    expires_at: Time,
}

impl<T, A: OneShotTimer> Deferred<T, A> {
    pub(crate) fn with(timer: A) -> Self {
        Deferred {
            lists: Mutex::new(Lists {
                sends: VecDeque::new(),
                acks: Vec::new(),
                expires_at: Time::default(),
            }),
            has_sends: CachePadded::new(AtomicBool::new(false)),
            has_acks: CachePadded::new(AtomicBool::new(false)),
            timer,
        }
    }

    pub(crate) fn timer(&self) -> &A {
        &self.timer
    }

    /// Records that a queue pair defers sends from `now` on, and arms the flush timer. `new` is the
    /// queue pair, unless it is on the list already.
    pub(crate) fn add(&self, new: Option<T>, now: Time) {
        let mut lists = lock(&self.lists);
        if let Some(new) = new {
            lists.sends.push_back(new);
            self.has_sends.store(true, Ordering::Release);
        }
        // With the lock held, so that `expires_at` and the timer agree.
        if lists.expires_at < now + FLUSH_TIMEOUT {
            lists.expires_at = now + 2 * FLUSH_TIMEOUT;
            self.timer.set(lists.expires_at);
        }
    }

    /// Adds a queue pair with a delayed ACK. Does not arm the timer.
    pub(crate) fn add_ack(&self, new: T) {
        lock(&self.lists).acks.push(new);
        self.has_acks.store(true, Ordering::Release);
    }

    /// Returns whether any queue pair has deferred sends.
    #[inline]
    pub(crate) fn has_sends(&self) -> bool {
        self.has_sends.load(Ordering::Acquire)
    }

    /// Returns whether any queue pair has a delayed ACK.
    #[inline]
    pub(crate) fn has_acks(&self) -> bool {
        self.has_acks.load(Ordering::Acquire)
    }

    /// Takes the queue pairs with deferred sends off their list, and passes each to `send` with no
    /// lock held.
    pub(crate) fn take_all(&self, mut send: impl FnMut(T)) {
        // Other threads may keep adding entries; this takes no more than there are now.
        for _ in 0..self.len() {
            let Some(taken) = self.take() else {
                return;
            };
            send(taken);
        }
    }

    /// Takes the queue pairs with delayed ACKs off their list, and passes each to `send` with no
    /// lock held.
    pub(crate) fn take_acks(&self, send: impl FnMut(T)) {
        if !self.has_acks() {
            return;
        }
        let mut lists = lock(&self.lists);
        self.has_acks.store(false, Ordering::Release);
        let acks = std::mem::take(&mut lists.acks);
        drop(lists);
        acks.into_iter().for_each(send);
    }

    /// Handles an expiry of the flush timer: clears it, and calls [`Deferred::take_all`].
    pub(crate) fn take_expired(&self, send: impl FnMut(T)) {
        self.timer.clear();
        // An entry that is added from now on arms the timer again; earlier ones are on the list.
        lock(&self.lists).expires_at = Time::default();
        self.take_all(send);
    }

    fn take(&self) -> Option<T> {
        let mut lists = lock(&self.lists);
        let taken = lists.sends.pop_front();
        if lists.sends.is_empty() {
            self.has_sends.store(false, Ordering::Release);
        }
        taken
    }

    fn len(&self) -> usize {
        match self.has_sends() {
            true => lock(&self.lists).sends.len(),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct NoTimer;

    impl OneShotTimer for NoTimer {
        fn set(&self, _: Time) {}
        fn clear(&self) {}
    }

    #[test]
    fn the_flush_timer_is_set_once_per_timeout_while_the_program_posts() {
        let deferred = Deferred::with(NoTimer);
        let expires_at = || lock(&deferred.lists).expires_at;
        let start = Time(3_600_000_000_000);
        deferred.add(Some(()), start);
        let first = expires_at();
        assert_eq!(first, start + 2 * FLUSH_TIMEOUT);
        deferred.add(None, start + FLUSH_TIMEOUT);
        assert_eq!(expires_at(), first);
        let later = start + FLUSH_TIMEOUT + Duration::from_nanos(1);
        deferred.add(None, later);
        assert_eq!(expires_at(), later + 2 * FLUSH_TIMEOUT);
    }
}
