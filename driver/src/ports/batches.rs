//! Send batches that are kept for reuse.

use crate::sync::{Mutex, lock};
use crossbeam_utils::atomic::AtomicCell;
use std::fmt;
use urxe_net::SendBatch;

/// The number of batches that are kept besides [`BatchPool::last`], for threads that send at the
/// same time.
const SPARE_BATCHES: usize = 3;

/// The send batches that no thread uses.
#[derive(Default)]
pub(crate) struct BatchPool {
    /// The batch that was returned last. While one thread sends at a time, it takes this one
    /// without a lock.
    last: AtomicCell<Option<Box<SendBatch>>>,
    #[expect(
        clippy::vec_box,
        reason = "a batch is moved several times for each send"
    )]
    others: Mutex<Vec<Box<SendBatch>>>,
}

impl fmt::Debug for BatchPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchPool").finish_non_exhaustive()
    }
}

impl BatchPool {
    /// Takes a batch: a kept one, or a new one.
    pub(crate) fn take(&self) -> Box<SendBatch> {
        let kept = self.last.take();
        kept.unwrap_or_else(|| lock(&self.others).pop().unwrap_or_default())
    }

    /// Returns a batch, for reuse.
    pub(crate) fn put(&self, batch: Box<SendBatch>) {
        if let Some(before) = self.last.swap(Some(batch)) {
            let mut others = lock(&self.others);
            if others.len() < SPARE_BATCHES {
                others.push(before);
            }
        }
    }
}
