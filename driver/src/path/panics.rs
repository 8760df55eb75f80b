//! Panics, which are faults of urxe itself: while packets are handled, and in calls of the C ABI.
//!
//! A panic may leave any queue pair half changed, and such a queue pair could deliver wrong data.
//! So all queue pairs of the process go to the error state with `IBV_EVENT_QP_FATAL`, as after a
//! catastrophic error of a device (11.6.3.2). The process goes on, and objects that it creates
//! afterwards work.

use super::engine::Engine;
use std::sync::atomic::Ordering;
use urxe_net::thread::CancellationDisabled;

/// Reports a panic that unwinds the frame in which this value exists. Its end without a panic is
/// [`PanicGuard::end`].
pub(super) struct PanicGuard<'a>(pub(super) &'a Engine);

impl PanicGuard<'_> {
    /// Ends the guard: there was no panic.
    pub(super) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.panicked();
    }
}

impl Engine {
    /// Records a panic; several frames may report the same one. The progress thread fails the queue
    /// pairs, since the thread that panicked may hold locks.
    pub fn panicked(&self) {
        let _disabled = CancellationDisabled::new();
        if self.network.get().is_none() {
            // There are no queue pairs yet, and no progress thread.
            self.counters.panics.add(1);
            return;
        }
        if !self.has_panicked.swap(true, Ordering::AcqRel) {
            self.counters.panics.add(1);
            tracing::error!("a panic, a bug in urxe: all queue pairs of this process fail");
            self.waker.wake();
        }
    }

    /// Returns whether a thread has panicked since the last call.
    pub(super) fn take_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed) && self.has_panicked.swap(false, Ordering::AcqRel)
    }
}
