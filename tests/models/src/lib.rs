//! Models of how threads meet in the driver: its own files, compiled with the locks and atomics of a model checker,
//! which tries every order in which threads can come, and every value that the memory model lets an atomic have.
//!
//! The files are named here by their paths, so what is checked is what runs. They take what threads meet at from
//! `crate::sync`, which is loom's here, and descriptors stay outside of them: [`system`] stands for the kernel. A thread that
//! waits for good where nobody will wake it is what loom calls a deadlock.
//!
//! `tests/models.rs` runs each.

pub mod acknowledgements;
pub mod gathering;
pub mod notifications;
pub mod progress;
pub mod queues;
mod system;

/// What the driver's `sync` has, in loom's kind.
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
#[allow(dead_code, reason = "models need not resize or purge")]
#[path = "../../../driver/src/cq/entries.rs"]
mod entries;
#[allow(
    dead_code,
    reason = "how long nobody is trusted is no matter of threads"
)]
#[path = "../../../driver/src/qp/gathered.rs"]
mod gathered;
#[path = "../../../driver/src/engine/handover.rs"]
mod handover;
#[allow(dead_code, reason = "models do not moderate")]
#[path = "../../../driver/src/moderation.rs"]
mod moderation;
#[path = "../../../driver/src/engine/timers.rs"]
mod timers;
#[path = "../../../driver/src/engine/waiting.rs"]
mod waiting;
