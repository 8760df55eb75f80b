//! Models of the concurrency of the driver, for the model checker loom.
//!
//! The driver's own files are compiled with loom's locks and atomics. Loom tries every interleaving
//! of the threads, and every value that the memory model permits for a load.
//!
//! The files are included by path, so the checked code is the code that runs. They import their
//! primitives from `crate::sync`, which is loom's here. They use no descriptors; [`system`] models
//! the kernel. Loom reports a thread that waits without a possible wake-up as a deadlock.
//!
//! `tests/models.rs` runs each model.

pub mod acknowledgements;
pub mod coalescing;
pub mod notifications;
pub mod progress;
pub mod queues;
mod system;

/// The counterpart of the driver's `sync`, with loom's types.
mod sync {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    use std::sync::PoisonError;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[path = "../../../driver/src/qp/answering.rs"]
mod answering;
#[path = "../../../driver/src/cm/gsi/aside.rs"]
mod aside;
#[path = "../../../driver/src/counted.rs"]
mod counted;
#[allow(dead_code, reason = "the models do not resize or purge")]
#[path = "../../../driver/src/cq/entries.rs"]
mod entries;
#[allow(dead_code, reason = "the back-off does not affect the concurrency")]
#[path = "../../../driver/src/qp/gathered.rs"]
mod gathered;
#[path = "../../../driver/src/engine/handover.rs"]
mod handover;
#[allow(dead_code, reason = "the models do not use moderation")]
#[path = "../../../driver/src/moderation.rs"]
mod moderation;
#[path = "../../../driver/src/engine/timers.rs"]
mod timers;
#[path = "../../../driver/src/engine/waiting.rs"]
mod waiting;
