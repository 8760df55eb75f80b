//! A queue, and outside of it a count of what is in it, by which readers wait for more.

use crate::sync::{Mutex, lock};
use std::collections::VecDeque;

/// Counts what is in a queue, for those who wait until there is something.
pub(crate) trait Count {
    /// One more.
    fn up(&self);

    /// One less. It must not wait.
    fn down(&self);
}

/// The oldest first.
#[derive(Debug)]
pub(crate) struct Counted<T, C> {
    /// It changes only while the queue is locked: so nobody who reads it is stopped because another one was
    /// quicker.
    count: C,
    queue: Mutex<VecDeque<T>>,
}

impl<T, C: Count> Counted<T, C> {
    /// An empty queue, of which nothing is counted yet.
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

    /// Gives the oldest one to `take` while the queue is held; where it returns `None`, the next one.
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

    /// Takes back those that `gone` names, in their order.
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
