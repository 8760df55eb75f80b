//! A queue with a semaphore, on which readers wait for entries without holding the queue's lock.

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use std::collections::VecDeque;

/// A semaphore that counts queued entries, on which readers wait. Its functions are not
/// cancellation points.
pub(crate) trait Semaphore {
    /// Adds one.
    fn up(&self);

    /// Subtracts one. Must not block.
    fn down(&self);
}

/// A queue of entries, oldest first, with a semaphore.
///
/// The semaphore is a descriptor, so each change of it is a system call. A thread that is about to
/// take an entry announces that ([`SemaphoreQueue::announce`]). The semaphore need not count an
/// entry that is added before that thread takes one, since no other reader has to wake for it.
#[derive(Debug)]
pub(crate) struct SemaphoreQueue<T, S> {
    /// Changes only while the queue is locked, so [`Semaphore::down`] never blocks.
    semaphore: S,
    queue: Mutex<Queue<T>>,
    /// A copy of the number of entries, so that an empty queue is found empty without the lock.
    /// Changes only while the queue is locked.
    len: AtomicUsize,
    /// Threads that are about to take an entry. Decreases only while the queue is locked.
    takers: AtomicUsize,
}

/// The entries, behind the lock.
///
/// Invariants: the semaphore's value is the number of entries less `uncounted`. `uncounted` is at
/// most the number of entries and at most [`SemaphoreQueue::takers`].
#[derive(Debug)]
struct Queue<T> {
    entries: VecDeque<T>,
    /// Entries that the semaphore does not include.
    uncounted: usize,
}

impl<T> Queue<T> {
    /// Subtracts a removed entry from the semaphore.
    fn removed(&mut self, semaphore: &impl Semaphore) {
        if self.uncounted > 0 {
            self.uncounted -= 1;
        } else {
            semaphore.down();
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
            }),
            len: AtomicUsize::new(0),
            takers: AtomicUsize::new(0),
        }
    }

    pub(crate) fn semaphore(&self) -> &S {
        &self.semaphore
    }

    pub(crate) fn push(&self, new: T) {
        let mut queue = lock(&self.queue);
        queue.entries.push_back(new);
        // Before the semaphore: a reader that it wakes must not find the queue empty.
        self.note_len(&queue);
        // If a thread announces itself after this load, this entry is counted all the same.
        if queue.uncounted < self.takers.load(Ordering::Relaxed) {
            queue.uncounted += 1;
        } else {
            self.semaphore.up();
        }
    }

    /// Takes the oldest entry and passes it to `take` while the queue is locked. If `take` returns
    /// `None`, continues with the next one.
    #[inline]
    pub(crate) fn take<R>(&self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        // A reader that finds none waits on the semaphore, which counts entries that are added
        // after this load, except for those of takers.
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
            queue.removed(&self.semaphore);
            // After the semaphore: otherwise a reader that finds the semaphore positive could find
            // the queue empty, and would poll until this thread decrements the semaphore.
            self.note_len(queue);
            if let Some(taken) = take(oldest) {
                return Some(taken);
            }
        }
        None
    }

    fn note_len(&self, queue: &Queue<T>) {
        self.len.store(queue.entries.len(), Ordering::Release);
    }

    /// Announces that the thread is about to take an entry. It must take one, if there is any, or
    /// drop the announcement, and must not sleep before.
    pub(crate) fn announce(&self) -> Announced<'_, T, S> {
        self.takers.fetch_add(1, Ordering::Relaxed);
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
        self.note_len(&queue);
        taken
    }
}

/// The announcement that a thread is about to take an entry. Dropping it withdraws the
/// announcement.
#[derive(Debug)]
pub(crate) struct Announced<'a, T, S: Semaphore> {
    /// `None` once the announcement has ended.
    queue: Option<&'a SemaphoreQueue<T, S>>,
}

impl<T, S: Semaphore> Announced<'_, T, S> {
    /// Takes an entry like [`SemaphoreQueue::take`], and ends the announcement.
    pub(crate) fn take<R>(mut self, take: impl FnMut(T) -> Option<R>) -> Option<R> {
        let queue = self.queue.take()?;
        let mut ending = Ending::new(queue);
        queue.take_locked(&mut ending.queue, take)
    }
}

/// A locked queue. Dropping it, in a panic too, ends an announcement and releases the lock.
struct Ending<'a, T, S: Semaphore> {
    queue: MutexGuard<'a, Queue<T>>,
    of: &'a SemaphoreQueue<T, S>,
}

impl<'a, T, S: Semaphore> Ending<'a, T, S> {
    fn new(of: &'a SemaphoreQueue<T, S>) -> Self {
        Ending {
            queue: lock(&of.queue),
            of,
        }
    }
}

impl<T, S: Semaphore> Drop for Ending<'_, T, S> {
    /// Adds to the semaphore the uncounted entries that exceed the remaining takers.
    #[inline]
    fn drop(&mut self) {
        let takers = self.of.takers.fetch_sub(1, Ordering::Relaxed) - 1;
        while self.queue.uncounted > takers {
            self.queue.uncounted -= 1;
            self.of.semaphore.up();
        }
    }
}

impl<T, S: Semaphore> Drop for Announced<'_, T, S> {
    fn drop(&mut self) {
        if let Some(queue) = self.queue {
            drop(Ending::new(queue));
        }
    }
}
