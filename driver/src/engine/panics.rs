//! Panics while packets are handled: faults of urxe itself.
//!
//! A panic may leave any queue pair half changed, and a queue pair that went on from there could deliver wrong data. So
//! all queue pairs of the process go to error with `IBV_EVENT_QP_FATAL`, as after a catastrophic error of a device
//! (11.6.3.2); the process and what it makes afterwards go on.

use super::Engine;
use crate::regions::regions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// Tells the engine of a panic that unwinds the frame which this lives in.
pub(super) struct PanicGuard<'a>(pub(super) &'a Engine);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked();
        }
    }
}

impl Engine {
    /// A thread panicked; the same panic may be reported by several frames. The progress thread sees to the queue pairs: the one that panicked may hold locks.
    pub(super) fn panicked(&self) {
        if !self.has_panicked.swap(true, Ordering::AcqRel) {
            self.counters.panics.add(1);
            tracing::error!("a panic, a bug in urxe: all queue pairs of this process fail");
            self.wake();
        }
    }

    /// Whether a thread has panicked since this was last called.
    pub(super) fn take_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed) && self.has_panicked.swap(false, Ordering::AcqRel)
    }

    /// Takes all queue pairs to error. No lock may be held.
    pub(super) fn fail_all(&self) {
        let qps: Vec<_> = self.qps().iter().cloned().collect();
        for qp in qps {
            // What a panic left behind may be the cause of the next.
            let failed = catch_unwind(AssertUnwindSafe(|| {
                qp.fail(urxe_net::now(), regions().table())
            }));
            if failed.is_err() {
                tracing::error!(qp = %qp.qpn(), "it cannot be taken to error");
            }
        }
    }
}
