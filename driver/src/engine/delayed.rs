//! Completion queues whose notification is delayed, see [`crate::moderation`].

use crate::cq::Cq;
use crate::event_queue::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_proto::time::Time;

/// The completion queues, each with the end of its delay. There are few: a queue is on the list
/// once for each event.
#[derive(Debug)]
pub(super) struct Delayed {
    list: Mutex<Vec<(Time, Weak<Cq>)>>,
    /// The earliest end, to be read without a lock.
    next: AtomicU64,
}

impl Delayed {
    pub(super) fn new() -> Self {
        Delayed {
            list: Mutex::default(),
            next: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// Returns the earliest end of a delay, or [`Time::NEVER`].
    pub(super) fn next(&self) -> Time {
        Time(self.next.load(Ordering::Acquire))
    }

    /// Adds a completion queue whose notification is delayed until `until`.
    pub(super) fn add(&self, cq: &Arc<Cq>, until: Time) {
        let mut list = lock(&self.list);
        list.push((until, Arc::downgrade(cq)));
        self.note_next(&list);
    }

    /// Removes the completion queues whose delay has ended, and returns them.
    pub(super) fn take_due(&self, now: Time) -> Vec<Arc<Cq>> {
        if self.next() > now {
            return Vec::new();
        }
        let mut list = lock(&self.list);
        let due: Vec<_> = list.extract_if(.., |(until, _)| *until <= now).collect();
        self.note_next(&list);
        drop(list);
        due.iter().filter_map(|(_, cq)| cq.upgrade()).collect()
    }

    fn note_next(&self, list: &[(Time, Weak<Cq>)]) {
        let next = list.iter().map(|(until, _)| *until).min();
        self.next
            .store(next.unwrap_or(Time::NEVER).0, Ordering::Release);
    }
}
