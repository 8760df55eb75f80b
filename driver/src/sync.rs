//! Locks, atomics and the fence of the parts that a model checker covers.
//!
//! Files that take these from here, and use nothing else of the system, are also compiled in
//! `tests/models`. There the same names are those of a model checker, which tries every
//! interleaving of the threads.

use crate::futex::AtomicU32;
use crate::futex_lock::{FutexLock, UNLOCKED};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

/// Reads of a locked mutex's state before a thread sleeps. Most locks are held for less than the
/// time of two system calls.
const SPINS: u32 = 100;

/// A mutex that a panic does not poison. A panic may leave a queue pair half changed, so all queue
/// pairs of the process fail then (`path/panics.rs`); other data behind the driver's locks stays
/// consistent. With the mutex of the standard library, a round trip of a small message takes 250
/// instructions more, which are mostly tests for poisoning.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// The guard of a locked [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// Locks a mutex.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// The lock of a [`Mutex`].
#[derive(Debug)]
pub struct RawMutex(FutexLock<SPINS>);

// SAFETY: the lock must be exclusive. `FutexLock::lock` and `try_lock` return with the lock only if
// one atomic operation, with acquire ordering, has changed its state from `UNLOCKED`. Only
// `unlock`, which the holder calls, stores `UNLOCKED`, with release ordering. So one thread at a
// time holds the lock.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = RawMutex(FutexLock::with(AtomicU32::new(UNLOCKED)));

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.0.lock();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    #[test]
    fn contending_threads_hold_the_lock_one_at_a_time() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 20_000;
        let sum = Arc::new(Mutex::new(0_u64));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let sum = Arc::clone(&sum);
                std::thread::spawn(move || {
                    for _ in 0..ROUNDS {
                        let mut sum = lock(&sum);
                        let before = *sum;
                        // Lets the waiting threads run.
                        if before % 64 == 0 {
                            std::thread::yield_now();
                        }
                        *sum = before + 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock(&sum), THREADS * ROUNDS);
    }

    #[test]
    fn a_thread_sleeps_until_the_lock_is_released() {
        let mutex = Arc::new(Mutex::new(0));
        let mut held = lock(&mutex);
        let other = {
            let mutex = Arc::clone(&mutex);
            std::thread::spawn(move || *lock(&mutex))
        };
        // SAFETY: the raw lock is not unlocked: only its state is read.
        let raw = unsafe { mutex.raw() };
        while !raw.0.is_contended() {
            std::thread::yield_now();
        }
        *held = 7;
        drop(held);
        assert_eq!(other.join().unwrap(), 7);
    }

    #[test]
    fn a_panic_releases_the_lock() {
        let mutex = Mutex::new(1);
        let panicking = AssertUnwindSafe(|| {
            let _held = lock(&mutex);
            panic!("deliberate");
        });
        assert!(catch_unwind(panicking).is_err());
        assert_eq!(*lock(&mutex), 1);
    }
}
