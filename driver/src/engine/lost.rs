//! The loss of the library's descriptors: the program has closed them, as with closefrom(3).
//!
//! When that is noticed, the numbers may already belong to files of the program. So the engine
//! neither reads nor closes them. Its queue pairs fail with `IBV_EVENT_QP_FATAL`, and objects that
//! the program creates afterwards belong to a new engine, as in a forked child.

use super::{ENGINE, Engine};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_net::thread;

/// Whether any engine of this process has lost its descriptors.
static HAS_LOST: AtomicBool = AtomicBool::new(false);

/// Returns whether the program has closed descriptors of the library. If so, a number must be
/// checked before it is used.
pub(crate) fn has_lost_descriptors() -> bool {
    HAS_LOST.load(Ordering::Acquire)
}

/// Returns whether an error of a system call says that a descriptor is closed, or of another kind
/// now.
pub(crate) fn is_loss(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK))
}

impl Engine {
    /// Reports that a descriptor of this engine is not valid any more. The caller may hold any
    /// lock.
    pub(crate) fn lost_descriptors(&self) {
        let current = super::get();
        // Another thread may have reported it, and there is a new engine.
        if !std::ptr::eq(self, current) || self.has_lost.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(
            "the program has closed descriptors of urxe, perhaps by closefrom(3): its queue pairs fail"
        );
        HAS_LOST.store(true, Ordering::Release);
        ENGINE.forget();
        let failing = thread::spawn("urxe-failing", || current.fail_all());
        if let Err(error) = failing {
            tracing::error!(%error, "they cannot be taken to error");
        }
    }

    /// Returns whether the descriptors are lost, so that nothing can be received or sent.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }
}
