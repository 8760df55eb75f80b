//! Timers of queue pairs.
//!
//! A deadline that moves later, as it does with every acknowledgement, keeps its entry: the timer
//! fires early, and the queue pair sets it again. So a busy connection costs one entry per timeout
//! instead of one per packet.

use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;

/// The deadlines of all queue pairs.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Time, u32)>>>,
    /// The earliest deadline, to be read without a lock.
    next: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Timers {
            heap: Mutex::new(BinaryHeap::new()),
            next: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// Returns the earliest deadline, or [`Time::NEVER`].
    pub(crate) fn next(&self) -> Time {
        Time(self.next.load(Ordering::Acquire))
    }

    /// Adds a deadline. Returns whether it is now the earliest.
    pub(crate) fn add(&self, qpn: Qpn, at: Time) -> bool {
        let mut heap = lock(&self.heap);
        heap.push(Reverse((at, qpn.get())));
        let earliest = at < self.next();
        if earliest {
            self.next.store(at.0, Ordering::Release);
        }
        earliest
    }

    /// Removes one deadline that is due, and returns it.
    pub(crate) fn take_due(&self, now: Time) -> Option<(Time, Qpn)> {
        if self.next() > now {
            return None;
        }
        let mut heap = lock(&self.heap);
        let due = match heap.peek() {
            Some(Reverse((at, _))) if *at <= now => heap.pop(),
            _ => None,
        };
        let next = heap.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
        self.next.store(next.0, Ordering::Release);
        due.map(|Reverse((at, qpn))| (at, Qpn::new(qpn)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_out_in_order_when_they_are_due() {
        let timers = Timers::new();
        assert!(timers.add(Qpn::new(1), Time(50)));
        assert!(!timers.add(Qpn::new(2), Time(70)));
        assert!(timers.add(Qpn::new(3), Time(20)));
        assert_eq!(timers.next(), Time(20));
        assert_eq!(timers.take_due(Time(19)), None);
        assert_eq!(timers.take_due(Time(60)), Some((Time(20), Qpn::new(3))));
        assert_eq!(timers.take_due(Time(60)), Some((Time(50), Qpn::new(1))));
        assert_eq!(timers.take_due(Time(60)), None);
        assert_eq!(timers.next(), Time(70));
    }
}
