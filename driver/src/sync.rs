//! What threads meet at: locks, atomics, and the fence between saying something and looking.
//!
//! Files that take these from here, and nothing else of the system, are also compiled in `tests/models`, where the
//! same names are those of a model checker, which tries every order in which threads can come.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock whose data is never left half changed by a panic.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
