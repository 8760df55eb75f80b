//! Models of the concurrency of the driver, for the model checker loom.
//!
//! The driver's own files are compiled with loom's locks and atomics. Loom tries every interleaving
//! of the threads, and every value that the memory model permits for a load.
//!
//! The files are included by path, so the checked code is the code that runs. They import their
//! primitives from `crate::sync`, or from `crate::futex` the lock itself; these are loom's here.
//! They use no descriptors; [`system`] models the kernel. Loom reports a thread that waits without
//! a possible wake-up as a deadlock.
//!
//! `tests/models.rs` runs each model.

pub mod acknowledgements;
pub mod deferred_sends;
mod futex;
pub mod locks;
pub mod notifications;
pub mod operations;
pub mod ownership;
pub mod progress;
pub mod queues;
pub mod receives;
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

#[allow(dead_code, reason = "the back-off does not affect the concurrency")]
#[path = "../../../driver/src/scheduling/coalescing.rs"]
mod coalescing;
#[path = "../../../driver/src/queues/gsi/deferred.rs"]
mod deferred_queue;
#[path = "../../../driver/src/scheduling/delayed_ack.rs"]
mod delayed_ack;
#[allow(dead_code, reason = "the models do not resize or purge")]
#[path = "../../../driver/src/queues/cq/entries.rs"]
mod entries;
#[allow(dead_code, reason = "only the driver's tests read the state")]
#[path = "../../../driver/src/futex_lock.rs"]
mod futex_lock;
#[allow(dead_code, reason = "the models do not post")]
#[path = "../../../driver/src/scheduling/handoff.rs"]
mod handoff;
#[allow(
    dead_code,
    reason = "the models use the policies of a part of the driver"
)]
#[path = "../../../driver/src/scheduling/limits.rs"]
mod limits;
#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../../driver/src/scheduling/moderation.rs"]
mod moderation;
#[path = "../../../driver/src/semaphore_queue.rs"]
mod semaphore_queue;

#[allow(dead_code, reason = "the models count no blocks")]
#[path = "../../../src/free_list.rs"]
mod free_list;
#[allow(
    dead_code,
    reason = "the models have no tasks that wait for room, and count no shared receives"
)]
#[path = "../../../src/outstanding.rs"]
mod outstanding;
#[path = "../../../driver/src/queues/qp/receive_ring.rs"]
mod receive_ring;

#[allow(
    dead_code,
    reason = "the models have no readers and no room waiters that leave"
)]
#[path = "../../../src/tasks.rs"]
mod tasks;
#[allow(dead_code, reason = "the models have no queues that are full")]
#[path = "../../../src/work_ring.rs"]
mod work_ring;

/// The memory of work requests in the Rust API, with owners that the models count.
mod slices {
    pub(crate) use crate::ownership::Memory;
}

/// The driver's path of the modules that completion queues use.
mod scheduling {
    pub(crate) use crate::moderation;
}

#[path = "../../../driver/src/scheduling/deferred.rs"]
mod deferred;
#[path = "../../../driver/src/scheduling/one_shot.rs"]
mod one_shot;
#[path = "../../../driver/src/scheduling/timers.rs"]
mod timers;
