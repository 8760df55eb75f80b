//! A lock of one word, on which threads wait in futex(2).

use crate::futex::{self, AtomicU32, Ordering};

/// A lock without data. A thread that finds it locked reads its state up to `SPINS` times, then
/// sleeps.
///
/// Unlike the locks of `parking_lot`, it has no process-wide state. So in a forked child a lock
/// works, unless a thread of the parent held it at the fork.
#[derive(Debug)]
pub struct FutexLock<const SPINS: u32> {
    state: AtomicU32,
}

pub(crate) const UNLOCKED: u32 = 0;
/// A thread holds the lock, and none waits.
const LOCKED: u32 = 1;
/// A thread holds the lock, and others may wait in futex(2).
const CONTENDED: u32 = 2;

impl<const SPINS: u32> FutexLock<SPINS> {
    /// Returns a lock whose state is `state`, which must be [`UNLOCKED`]. The caller makes the
    /// atomic, because only that of the standard library can be made in a constant.
    pub(crate) const fn with(state: AtomicU32) -> Self {
        FutexLock { state }
    }

    /// Acquires the lock.
    #[inline]
    pub(crate) fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    /// Acquires the lock if it is free. Returns whether it was.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        (self.state)
            .compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Releases the lock, which the caller must hold.
    #[inline]
    pub(crate) fn unlock(&self) {
        if self.state.swap(UNLOCKED, Ordering::Release) == CONTENDED {
            self.wake_one();
        }
    }

    /// Returns whether a thread may wait for the lock.
    #[cfg(test)]
    pub(crate) fn is_contended(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CONTENDED
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            match self.state.load(Ordering::Relaxed) {
                UNLOCKED if self.try_lock() => return,
                CONTENDED => break,
                _ => std::hint::spin_loop(),
            }
        }
        // Other threads may wait as well, so a thread that has waited keeps the state `CONTENDED`.
        while self.state.swap(CONTENDED, Ordering::Acquire) != UNLOCKED {
            futex::wait(&self.state, CONTENDED);
        }
    }

    #[cold]
    fn wake_one(&self) {
        futex::wake_one(&self.state);
    }
}
