//! Protection domains: what ties queue pairs to the memory that they may use (10.2.3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A protection domain. Everything that belongs to it keeps it alive.
#[derive(Debug)]
pub struct Pd {
    id: u64,
}

impl Pd {
    /// A new one, unlike all others of the process.
    pub fn new() -> Arc<Pd> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Pd {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Its number, never used again.
    pub fn id(&self) -> u64 {
        self.id
    }
}
