//! A queue with a counter of its entries outside the lock, on which readers wait.

use crate::sync::{Mutex, lock};
use std::collections::VecDeque;

/// A counter of queued entries, on which readers wait.
pub(crate) trait Count {
    /// Adds one.
    fn up(&self);

    /// Subtracts one. Must not block.
    fn down(&self);
}

/// A queue of entries, oldest first, with a counter.
#[derive(Debug)]
pub(crate) struct Counted<T, C> {
    /// Changes only while the queue is locked. So a reader never blocks because another one took
    /// the entry first.
    count: C,
    queue: Mutex<VecDeque<T>>,
}

impl<T, C: Count> Counted<T, C> {
    /// Creates an empty queue; `count` must be 0.
    pub(crate) fn with(count: C) -> Self {
        Counted {
            count,
            queue: Mutex::new(VecDeque::new()),
        }
    }

    pub(crate) fn count(&self) -> &C {
        &self.count
    }

    pub(crate) fn push(&self, new: T) {
        let mut queue = lock(&self.queue);
        queue.push_back(new);
        self.count.up();
    }

    /// Takes the oldest entry and passes it to `take` while the queue is locked. If `take` returns
    /// `None`, continues with the next one.
    pub(crate) fn take<R>(&self, mut take: impl FnMut(T) -> Option<R>) -> Option<R> {
        let mut queue = lock(&self.queue);
        while let Some(oldest) = queue.pop_front() {
            self.count.down();
            if let Some(taken) = take(oldest) {
                return Some(taken);
            }
        }
        None
    }

    /// Removes and returns the entries that `gone` selects, in their order.
    pub(crate) fn retract(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = lock(&self.queue);
        let mut taken = Vec::new();
        for one in std::mem::take(&mut *queue) {
            if gone(&one) {
                self.count.down();
                taken.push(one);
            } else {
                queue.push_back(one);
            }
        }
        taken
    }
}
