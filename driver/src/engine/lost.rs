//! Descriptors of the library that the program has closed, as with closefrom(3).
//!
//! The numbers may be the program's own files by the time at which that is noticed. So the engine leaves them alone: it
//! neither reads nor closes them. Its queue pairs fail with `IBV_EVENT_QP_FATAL`, and what the program makes
//! afterwards gets an engine of its own, as in a forked child.

use super::{ENGINE, Engine};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use urxe_net::thread;

/// Whether any engine of this process has lost its descriptors.
static HAS_LOST: AtomicBool = AtomicBool::new(false);

/// Whether the program has closed descriptors of the library: then a number must be looked at before it is used.
pub(crate) fn has_lost_descriptors() -> bool {
    HAS_LOST.load(Ordering::Acquire)
}

/// Whether an error of a system call says that a descriptor is closed, or is of another kind now.
pub(crate) fn is_loss(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK))
}

impl Engine {
    /// A descriptor of the engine's is not valid any more. The caller may hold any lock.
    pub(crate) fn lost_descriptors(&self) {
        let current = super::get();
        // Another thread has noticed it, and there is a new engine.
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

    /// Whether the descriptors are lost, and nothing can be received or sent.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }
}
