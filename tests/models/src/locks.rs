//! The driver's lock: one thread at a time holds it, sees what the holders before have written,
//! and is woken if it waits.

use crate::futex::AtomicU32;
use crate::futex_lock::{FutexLock, UNLOCKED};
use crate::system::{check, join, thread};
use loom::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The driver's lock, with fewer reads before a thread sleeps.
type Lock = FutexLock<1>;

/// A number that threads may access only while they hold the lock. Loom reports an access that does
/// not happen after the one before.
struct Counter {
    lock: Lock,
    value: UnsafeCell<u32>,
}

// SAFETY: threads access `value` only while they hold `lock`. That this is exclusive is what the
// models verify; loom ends a model before two accesses overlap.
unsafe impl Sync for Counter {}

impl Counter {
    fn new() -> Arc<Self> {
        Arc::new(Counter {
            lock: Lock::with(AtomicU32::new(UNLOCKED)),
            value: UnsafeCell::new(0),
        })
    }

    fn increment(&self) {
        self.lock.lock();
        self.increment_and_unlock();
    }

    /// Returns whether the lock was free.
    fn try_increment(&self) -> bool {
        let is_locked = self.lock.try_lock();
        if is_locked {
            self.increment_and_unlock();
        }
        is_locked
    }

    fn increment_and_unlock(&self) {
        // SAFETY: the pointer is valid in the closure. This thread holds the lock; see `Sync`.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.lock.unlock();
    }

    /// Returns the number when all threads have ended.
    fn total(&self) -> u32 {
        assert!(
            self.lock.try_lock(),
            "the last holder has released the lock"
        );
        // SAFETY: the pointer is valid in the closure. This thread holds the lock; see `Sync`.
        self.value.with(|value| unsafe { *value })
    }
}

/// Three threads lock once: two may wait while the third releases.
pub fn each_waiting_thread_gets_the_lock() {
    check(3, || {
        let counter = Counter::new();
        let others = [(); 2].map(|()| thread(&counter, Counter::increment));
        counter.increment();
        others.into_iter().for_each(join);
        assert_eq!(counter.total(), 3);
    });
}

/// Two threads lock repeatedly: a thread that has released locks again before the thread that it
/// has woken.
pub fn woken_thread_gets_the_lock_after_another() {
    check(4, || {
        let counter = Counter::new();
        let other = thread(&counter, |counter| {
            counter.increment();
            counter.increment();
        });
        counter.increment();
        counter.increment();
        join(other);
        assert_eq!(counter.total(), 4);
    });
}

/// Whether an attempt to lock has failed, and has succeeded, in some run of the model.
static FAILED: AtomicBool = AtomicBool::new(false);
static SUCCEEDED: AtomicBool = AtomicBool::new(false);

/// A thread that does not wait holds the lock as well as one that does.
pub fn attempt_to_lock_excludes_others() {
    check(4, || {
        let counter = Counter::new();
        let attempt = thread(&counter, Counter::try_increment);
        let other = thread(&counter, Counter::increment);
        counter.increment();
        let succeeded = join(attempt);
        join(other);
        assert_eq!(counter.total(), 2 + u32::from(succeeded));
        match succeeded {
            true => SUCCEEDED.store(true, Ordering::Relaxed),
            false => FAILED.store(true, Ordering::Relaxed),
        }
    });
    assert!(FAILED.load(Ordering::Relaxed) && SUCCEEDED.load(Ordering::Relaxed));
}
