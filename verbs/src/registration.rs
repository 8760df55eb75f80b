//! Registrations of memory, which several `ibv_mr` may share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use urxe_driver::Mr;
use urxe_driver::dmabuf::DmaBuf;
use urxe_proto::ids::LKey;

use super::object::Use;

/// A registration, which several imports may share. `inner` is declared before `memory`, so that
/// the region is dropped before the memory under it.
#[derive(Debug)]
pub(super) struct Registration {
    /// `None` once the registration has ended. In the lock order it precedes the table of regions,
    /// so a thread that posts must not take it: the members that posting reads are outside it.
    pub inner: Mutex<Option<Inner>>,
    pub lkey: LKey,
    /// The number of its protection domain, or [`ENDED`].
    pub domain: AtomicU64,
    pub memory: Memory,
}

/// The value of `domain` after the registration has ended. No protection domain has this number.
pub(super) const ENDED: u64 = 0;

/// The parts that re-registration changes.
#[derive(Debug)]
pub(super) struct Inner {
    pub driver: Mr,
    pub pd: Use,
}

/// The memory of a region.
#[derive(Debug)]
pub(super) enum Memory {
    /// Memory of the program.
    Program,
    /// No memory.
    Null,
    /// A part of device memory.
    Device(#[expect(dead_code, reason = "counts while it lives")] Use),
    /// A part of a DMA buffer.
    DmaBuf(#[expect(dead_code, reason = "mapped while it lives")] DmaBuf),
}

impl Registration {
    /// Ends the registration, for all imports of it.
    pub fn end(&self) {
        let mut inner = self.inner();
        self.domain.store(ENDED, Ordering::Release);
        let ended = inner.take();
        drop(inner);
        drop(ended);
    }

    pub fn inner(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
