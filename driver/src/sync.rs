//! Locks, atomics and the fence of the parts that a model checker covers.
//!
//! Files that take these from here, and use nothing else of the system, are also compiled in
//! `tests/models`. There the same names are those of a model checker, which tries every
//! interleaving of the threads.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data no panic can leave half changed, so poisoning is ignored.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
