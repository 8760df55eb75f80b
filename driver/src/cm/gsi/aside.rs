//! A bounded queue for work that arrives while locks are held, and is done without locks.
//!
//! The thread that adds an entry processes the queue after it has released its locks. The progress
//! thread checks the queue, too, before it sleeps.

use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The maximum number of entries. Further ones are dropped; their senders retransmit.
const ROOM: usize = 4096;

/// The entries, oldest first.
#[derive(Debug)]
pub(super) struct Aside<T> {
    waiting: Mutex<Vec<T>>,
    /// Whether there are entries, readable without the lock.
    some: AtomicBool,
}

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Aside {
            waiting: Mutex::new(Vec::new()),
            some: AtomicBool::new(false),
        }
    }
}

impl<T> Aside<T> {
    /// Adds the entry that `make` returns, if there is room; returns whether there was.
    pub(super) fn put(&self, make: impl FnOnce() -> T) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= ROOM {
            return false;
        }
        waiting.push(make());
        self.some.store(true, Ordering::Release);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.some.load(Ordering::Acquire)
    }

    /// Removes and returns all entries.
    pub(super) fn take(&self) -> Vec<T> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.some.store(false, Ordering::Release);
        std::mem::take(&mut *waiting)
    }
}
