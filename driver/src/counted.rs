//! A queue with a counter of its entries outside the lock, on which readers wait.

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, lock};
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
    /// A copy of the number of entries, so that an empty queue is found empty without the lock.
    /// Changes only while the queue is locked.
    len: AtomicUsize,
    /// Threads that are about to take an entry. Decreases only while the queue is locked.
    takers: AtomicUsize,
}

/// Invariants: the counter is the number of entries less `uncounted`, which is at most the number
/// of entries and at most [`Counted::takers`].
#[derive(Debug)]
struct Queue<T> {
    entries: VecDeque<T>,
    /// Entries that the counter does not include.
    uncounted: usize,
}

impl<T> Queue<T> {
    /// Subtracts a removed entry from the counter.
    fn removed(&mut self, count: &impl Count) {
        if self.uncounted > 0 {
            self.uncounted -= 1;
        } else {
            count.down();
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
            }),
            len: AtomicUsize::new(0),
            takers: AtomicUsize::new(0),
        }
    }

    pub(crate) fn count(&self) -> &C {
        &self.count
    }

    pub(crate) fn push(&self, new: T) {
        let mut queue = lock(&self.queue);
        queue.entries.push_back(new);
        self.note_len(&queue);
        // A thread that announces itself after this load takes an entry that is counted.
        if queue.uncounted < self.takers.load(Ordering::Relaxed) {
            queue.uncounted += 1;
        } else {
            self.count.up();
        }
    }

    /// Takes the oldest entry and passes it to `take` while the queue is locked. If `take` returns
    /// `None`, continues with the next one.
    #[inline]
    pub(crate) fn take<R>(&self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        // An entry that is added after this load is counted, so a reader does not miss it.
        match self.len.load(Ordering::Acquire) {
            0 => None,
            _ => self.take_locked(&mut lock(&self.queue), take),
        }
    }

    fn take_locked<R>(
        &self,
        queue: &mut Queue<T>,
        mut take: impl FnMut(T) -> Option<R>,
    ) -> Option<R> {
        while let Some(oldest) = queue.entries.pop_front() {
            self.note_len(queue);
            queue.removed(&self.count);
            if let Some(taken) = take(oldest) {
                return Some(taken);
            }
        }
        None
    }

    fn note_len(&self, queue: &Queue<T>) {
        self.len.store(queue.entries.len(), Ordering::Release);
    }

    /// Announces that the thread is about to take an entry, if there is one then. It must not sleep
    /// before.
    pub(crate) fn announce(&self) -> Announced<'_, T, C> {
        self.takers.fetch_add(1, Ordering::Relaxed);
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
        self.note_len(&queue);
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
        let counted = self.queue.take()?;
        let mut ending = Ending::of(counted);
        counted.take_locked(&mut ending.queue, take)
    }
}

/// Ends an announcement when it is dropped, with the queue locked, also if a panic drops it.
struct Ending<'a, T, C: Count> {
    queue: MutexGuard<'a, Queue<T>>,
    counted: &'a Counted<T, C>,
}

impl<'a, T, C: Count> Ending<'a, T, C> {
    fn of(counted: &'a Counted<T, C>) -> Self {
        Ending {
            queue: lock(&counted.queue),
            counted,
        }
    }
}

impl<T, C: Count> Drop for Ending<'_, T, C> {
    /// Counts the entries that no other taker is about to take.
    #[inline]
    fn drop(&mut self) {
        let takers = self.counted.takers.fetch_sub(1, Ordering::Relaxed) - 1;
        while self.queue.uncounted > takers {
            self.queue.uncounted -= 1;
            self.counted.count.up();
        }
    }
}

impl<T, C: Count> Drop for Announced<'_, T, C> {
    fn drop(&mut self) {
        if let Some(counted) = self.queue {
            drop(Ending::of(counted));
        }
    }
}
