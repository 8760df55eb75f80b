//! A bounded queue for work that arrives while locks are held, and is done without locks.
//!
//! The thread that adds an entry processes the queue after it has released its locks. The progress
//! thread checks the queue, too, before it sleeps.

use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The maximum number of entries: as many requests as may wait for a backlog, since a burst of them
/// may be received at once. Further ones are dropped; their senders retransmit.
const MAX_ENTRIES: usize = 16_384;

/// The entries, oldest first.
#[derive(Debug)]
pub(crate) struct DeferredQueue<T> {
    waiting: Mutex<Vec<T>>,
    /// Whether there are entries, readable without the lock.
    has_entries: AtomicBool,
}

impl<T> Default for DeferredQueue<T> {
    fn default() -> Self {
        DeferredQueue {
            waiting: Mutex::new(Vec::new()),
            has_entries: AtomicBool::new(false),
        }
    }
}

impl<T> DeferredQueue<T> {
    /// Adds the entry that `make` returns, if there is room; returns whether there was.
    pub(crate) fn put(&self, make: impl FnOnce() -> T) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= MAX_ENTRIES {
            return false;
        }
        waiting.push(make());
        self.has_entries.store(true, Ordering::Release);
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_entries.load(Ordering::Acquire)
    }

    /// Removes and returns all entries.
    pub(crate) fn take(&self) -> Vec<T> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.has_entries.store(false, Ordering::Release);
        std::mem::take(&mut *waiting)
    }
}
