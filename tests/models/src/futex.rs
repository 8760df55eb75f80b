//! A model of futex(2), in place of the driver's module of this name.

use crate::sync::lock;
use loom::sync::{Condvar, Mutex};
use std::sync::PoisonError;

pub(crate) use loom::sync::atomic::Ordering;

/// An atomic with the kernel's queue of the threads that wait on it.
#[derive(Debug)]
pub(crate) struct AtomicU32 {
    value: loom::sync::atomic::AtomicU32,
    queue: Mutex<Queue>,
    woken: Condvar,
}

#[derive(Default, Debug)]
struct Queue {
    /// Threads that wait, without those that have been woken.
    waiting: usize,
    /// Wake-ups for threads that have not run since.
    wake_ups: usize,
}

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> Self {
        AtomicU32 {
            value: loom::sync::atomic::AtomicU32::new(value),
            queue: Mutex::new(Queue::default()),
            woken: Condvar::new(),
        }
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.value.load(order)
    }

    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.value.swap(value, order)
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        self.value.compare_exchange(current, new, success, failure)
    }
}

/// Sleeps until a wake-up, if `word` is `expected`.
///
/// The kernel compares while it holds the lock of the queue, which a wake-up takes as well. So a
/// thread that changes `word` and then wakes finds this thread in the queue, or this thread finds
/// the change.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    let mut queue = lock(&word.queue);
    if word.value.load(Ordering::Relaxed) != expected {
        return;
    }
    queue.waiting += 1;
    while queue.wake_ups == 0 {
        queue = word
            .woken
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
    }
    queue.wake_ups -= 1;
}

/// Wakes one thread that waits on `word`, if there is one.
pub(crate) fn wake_one(word: &AtomicU32) {
    let mut queue = lock(&word.queue);
    if queue.waiting > 0 {
        queue.waiting -= 1;
        queue.wake_ups += 1;
        word.woken.notify_one();
    }
}
