//! Protection domains: they associate queue pairs with the memory that these may use (10.2.3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A protection domain. Every object that belongs to it holds a reference.
#[derive(Debug)]
pub struct Pd {
    id: u64,
}

impl Pd {
    /// Creates a protection domain with a number that is unique in the process.
    pub fn new() -> Arc<Pd> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Pd {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The number, never reused.
    pub fn id(&self) -> u64 {
        self.id
    }
}
