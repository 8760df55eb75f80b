//! Send batches that are kept for reuse.

use crate::sync::lock;
use std::sync::Mutex;
use urxe_net::SendBatch;

/// The number of batches that are kept: as many as threads send at once.
const SPARE_BATCHES: usize = 4;

/// The send batches that no thread uses.
#[derive(Debug, Default)]
pub(crate) struct BatchPool(
    #[expect(
        clippy::vec_box,
        reason = "a batch is moved several times for each send"
    )]
    Mutex<Vec<Box<SendBatch>>>,
);

impl BatchPool {
    /// Takes a batch: a kept one, or a new one.
    pub(crate) fn take(&self) -> Box<SendBatch> {
        lock(&self.0).pop().unwrap_or_default()
    }

    /// Returns a batch, for reuse.
    pub(crate) fn put(&self, batch: Box<SendBatch>) {
        let mut batches = lock(&self.0);
        if batches.len() < SPARE_BATCHES {
            batches.push(batch);
        }
    }
}
