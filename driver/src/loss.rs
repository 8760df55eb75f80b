//! The loss of the library's descriptors: the program has closed them, as with closefrom(3).
//!
//! When the library detects that, the numbers may already belong to files of the program. So the
//! library neither reads nor closes them. Its queue pairs fail with `IBV_EVENT_QP_FATAL`, and
//! objects that the program creates afterwards belong to a new engine, as in a forked child.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the descriptors of any engine of this process are lost.
static DESCRIPTORS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns whether the program has closed descriptors of the library. If so, a number must be
/// checked before it is used.
pub(crate) fn has_lost_descriptors() -> bool {
    DESCRIPTORS_CLOSED.load(Ordering::Acquire)
}

/// Returns whether an error of a system call says that a descriptor is closed, or of another kind
/// now.
pub(crate) fn is_loss(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK))
}

type Action = Box<dyn Fn() + Send + Sync>;

/// Whether the descriptors of one engine are usable.
pub(crate) struct ClosedDescriptors {
    /// The process that opened the descriptors. A forked child does not use them.
    owner: u32,
    is_lost: AtomicBool,
    action: OnceLock<Action>,
}

impl fmt::Debug for ClosedDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClosedDescriptors")
            .field(&self.is_lost)
            .finish()
    }
}

impl Default for ClosedDescriptors {
    fn default() -> Self {
        ClosedDescriptors {
            owner: std::process::id(),
            is_lost: AtomicBool::new(false),
            action: OnceLock::new(),
        }
    }
}

impl ClosedDescriptors {
    /// Sets the action of the first report. Later calls have no effect.
    pub(crate) fn on_report(&self, action: impl Fn() + Send + Sync + 'static) {
        let _ = self.action.set(Box::new(action));
    }

    /// Reports that a descriptor is not valid any more. A report in a forked child is ignored. The
    /// caller may hold any lock.
    pub(crate) fn report(&self) {
        if self.owner != std::process::id() || self.is_lost.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(
            "the program has closed descriptors of urxe, perhaps by closefrom(3): its queue pairs fail"
        );
        DESCRIPTORS_CLOSED.store(true, Ordering::Release);
        if let Some(action) = self.action.get() {
            action();
        }
    }

    /// Returns whether the descriptors are lost, so that nothing can be received or sent.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Returns whether this process opened the descriptors, and they are not lost.
    pub(crate) fn is_usable(&self) -> bool {
        self.owner == std::process::id() && !self.is_lost()
    }
}
