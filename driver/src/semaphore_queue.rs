//! A queue with a semaphore that counts its entries, on which readers wait without the lock.

use crate::sync::{Mutex, MutexGuard, lock};
use std::collections::VecDeque;

/// A semaphore that counts queued entries, on which readers wait.
pub(crate) trait Semaphore {
    /// Adds one.
    fn up(&self);

    /// Subtracts one. Must not block.
    fn down(&self);
}

/// A queue of entries, oldest first, with a semaphore.
///
/// The semaphore is a descriptor, so each change of it is a system call. A thread that is about to
/// take an entry announces that ([`SemaphoreQueue::announce`]). An entry that is added before it is
/// taken need not be counted, since no other reader has to wake for it.
#[derive(Debug)]
pub(crate) struct SemaphoreQueue<T, S> {
    /// Changes only while the queue is locked. So a reader never blocks because another one took
    /// the entry first.
    semaphore: S,
    queue: Mutex<Queue<T>>,
}

/// Invariants: the semaphore's value is the number of entries less `uncounted`, which is at most
/// the number of entries and at most `takers`.
#[derive(Debug)]
struct Queue<T> {
    entries: VecDeque<T>,
    /// Entries that the semaphore does not include.
    uncounted: usize,
    /// Threads that are about to take an entry.
    takers: usize,
}

impl<T> Queue<T> {
    fn push(&mut self, new: T, semaphore: &impl Semaphore) {
        self.entries.push_back(new);
        if self.uncounted < self.takers {
            self.uncounted += 1;
        } else {
            semaphore.up();
        }
    }

    /// Subtracts a removed entry from the semaphore.
    fn removed(&mut self, semaphore: &impl Semaphore) {
        if self.uncounted > 0 {
            self.uncounted -= 1;
        } else {
            semaphore.down();
        }
    }

    /// See [`SemaphoreQueue::take`].
    fn take<R>(
        &mut self,
        semaphore: &impl Semaphore,
        mut take: impl FnMut(T) -> Option<R>,
    ) -> Option<R> {
        while let Some(oldest) = self.entries.pop_front() {
            self.removed(semaphore);
            if let Some(taken) = take(oldest) {
                return Some(taken);
            }
        }
        None
    }

    /// Ends an announcement: counts the entries that no other taker is about to take.
    fn end_announcement(&mut self, semaphore: &impl Semaphore) {
        self.takers -= 1;
        while self.uncounted > self.takers {
            self.uncounted -= 1;
            semaphore.up();
        }
    }
}

impl<T, S: Semaphore> SemaphoreQueue<T, S> {
    /// Creates an empty queue. The value of `semaphore` must be 0.
    pub(crate) fn with(semaphore: S) -> Self {
        SemaphoreQueue {
            semaphore,
            queue: Mutex::new(Queue {
                entries: VecDeque::new(),
                uncounted: 0,
                takers: 0,
            }),
        }
    }

    pub(crate) fn semaphore(&self) -> &S {
        &self.semaphore
    }

    pub(crate) fn push(&self, new: T) {
        lock(&self.queue).push(new, &self.semaphore);
    }

    /// Takes the oldest entry and passes it to `take` while the queue is locked. If `take` returns
    /// `None`, continues with the next one.
    pub(crate) fn take<R>(&self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        lock(&self.queue).take(&self.semaphore, take)
    }

    /// Announces that the thread is about to take an entry, if there is one then. It must not sleep
    /// before.
    pub(crate) fn announce(&self) -> Announced<'_, T, S> {
        lock(&self.queue).takers += 1;
        Announced { queue: Some(self) }
    }

    /// Removes and returns the entries for which `gone` returns true, in their order.
    pub(crate) fn extract_if(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = lock(&self.queue);
        let mut taken = Vec::new();
        for one in std::mem::take(&mut queue.entries) {
            if gone(&one) {
                queue.removed(&self.semaphore);
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
pub(crate) struct Announced<'a, T, S: Semaphore> {
    /// `None` once the announcement has ended.
    queue: Option<&'a SemaphoreQueue<T, S>>,
}

impl<T, S: Semaphore> Announced<'_, T, S> {
    /// See [`SemaphoreQueue::take`].
    pub(crate) fn take<R>(mut self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        let SemaphoreQueue { semaphore, queue } = self.queue.take()?;
        let mut ending = Ending {
            queue: lock(queue),
            semaphore,
        };
        ending.queue.take(semaphore, take)
    }
}

/// Ends an announcement when it is dropped, with the queue locked, also if a panic drops it.
struct Ending<'a, T, S: Semaphore> {
    queue: MutexGuard<'a, Queue<T>>,
    semaphore: &'a S,
}

impl<T, S: Semaphore> Drop for Ending<'_, T, S> {
    fn drop(&mut self) {
        self.queue.end_announcement(self.semaphore);
    }
}

impl<T, S: Semaphore> Drop for Announced<'_, T, S> {
    fn drop(&mut self) {
        if let Some(SemaphoreQueue { semaphore, queue }) = self.queue {
            let queue = lock(queue);
            drop(Ending { queue, semaphore });
        }
    }
}
