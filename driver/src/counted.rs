//! A queue with a counter of its entries outside the lock, on which readers wait.

use crate::sync::{Mutex, MutexGuard, lock};
use std::collections::VecDeque;

/// A counter of queued entries, on which readers wait.
pub(crate) trait Count {
    /// Adds one.
    fn up(&self);

    /// Subtracts one. Must not block.
    fn down(&self);
}

/// A queue of entries, oldest first, with a counter.
///
/// The counter is a descriptor, so each change of it is a system call. A thread that is about to
/// take an entry announces that ([`Counted::announce`]). An entry that is added meanwhile need not
/// be counted, since no other reader has to wake for it.
#[derive(Debug)]
pub(crate) struct Counted<T, C> {
    /// Changes only while the queue is locked. So a reader never blocks because another one took
    /// the entry first.
    count: C,
    queue: Mutex<Queue<T>>,
}

/// Invariants: the counter is the number of entries less `uncounted`, which is at most the number
/// of entries and at most `takers`.
#[derive(Debug)]
struct Queue<T> {
    entries: VecDeque<T>,
    /// Entries that the counter does not include.
    uncounted: usize,
    /// Threads that are about to take an entry.
    takers: usize,
}

impl<T> Queue<T> {
    fn push(&mut self, new: T, count: &impl Count) {
        self.entries.push_back(new);
        if self.uncounted < self.takers {
            self.uncounted += 1;
        } else {
            count.up();
        }
    }

    /// Subtracts a removed entry from the counter.
    fn removed(&mut self, count: &impl Count) {
        if self.uncounted > 0 {
            self.uncounted -= 1;
        } else {
            count.down();
        }
    }

    /// See [`Counted::take`].
    fn take<R>(&mut self, count: &impl Count, mut take: impl FnMut(T) -> Option<R>) -> Option<R> {
        while let Some(oldest) = self.entries.pop_front() {
            self.removed(count);
            if let Some(taken) = take(oldest) {
                return Some(taken);
            }
        }
        None
    }

    /// Ends an announcement: counts the entries that no other taker is about to take.
    fn end_announcement(&mut self, count: &impl Count) {
        self.takers -= 1;
        while self.uncounted > self.takers {
            self.uncounted -= 1;
            count.up();
        }
    }
}

impl<T, C: Count> Counted<T, C> {
    /// Creates an empty queue; `count` must be 0.
    pub(crate) fn with(count: C) -> Self {
        Counted {
            count,
            queue: Mutex::new(Queue {
                entries: VecDeque::new(),
                uncounted: 0,
                takers: 0,
            }),
        }
    }

    pub(crate) fn count(&self) -> &C {
        &self.count
    }

    pub(crate) fn push(&self, new: T) {
        lock(&self.queue).push(new, &self.count);
    }

    /// Takes the oldest entry and passes it to `take` while the queue is locked. If `take` returns
    /// `None`, continues with the next one.
    pub(crate) fn take<R>(&self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        lock(&self.queue).take(&self.count, take)
    }

    /// Announces that the thread is about to take an entry, if there is one then. It must not sleep
    /// before.
    pub(crate) fn announce(&self) -> Announced<'_, T, C> {
        lock(&self.queue).takers += 1;
        Announced { queue: Some(self) }
    }

    /// Removes and returns the entries for which `gone` returns true, in their order.
    pub(crate) fn retract(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = lock(&self.queue);
        let mut taken = Vec::new();
        for one in std::mem::take(&mut queue.entries) {
            if gone(&one) {
                queue.removed(&self.count);
                taken.push(one);
            } else {
                queue.entries.push_back(one);
            }
        }
        taken
    }
}

/// A thread that is about to take an entry. Dropping it withdraws that.
#[derive(Debug)]
pub(crate) struct Announced<'a, T, C: Count> {
    /// `None` once the announcement has ended.
    queue: Option<&'a Counted<T, C>>,
}

impl<T, C: Count> Announced<'_, T, C> {
    /// See [`Counted::take`].
    pub(crate) fn take<R>(mut self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        let Counted { count, queue } = self.queue.take()?;
        let mut ending = Ending {
            queue: lock(queue),
            count,
        };
        ending.queue.take(count, take)
    }
}

/// Ends an announcement when it is dropped, with the queue locked, also if a panic drops it.
struct Ending<'a, T, C: Count> {
    queue: MutexGuard<'a, Queue<T>>,
    count: &'a C,
}

impl<T, C: Count> Drop for Ending<'_, T, C> {
    fn drop(&mut self) {
        self.queue.end_announcement(self.count);
    }
}

impl<T, C: Count> Drop for Announced<'_, T, C> {
    fn drop(&mut self) {
        if let Some(Counted { count, queue }) = self.queue {
            let queue = lock(queue);
            drop(Ending { queue, count });
        }
    }
}
