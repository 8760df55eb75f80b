//! Things put aside where locks are held, for whoever holds none.
//!
//! Who puts something aside takes what is there as soon as it can; the progress thread looks, too, before it sleeps.

use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// How many wait at most. Whoever sent more repeats them.
const ROOM: usize = 4096;

/// The oldest first.
#[derive(Debug)]
pub(super) struct Aside<T> {
    waiting: Mutex<Vec<T>>,
    /// Whether there are any, for those who just want to know.
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
    /// Puts one aside, which is made if there is room. Whether there was.
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

    /// Takes all of them.
    pub(super) fn take(&self) -> Vec<T> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.some.store(false, Ordering::Release);
        std::mem::take(&mut *waiting)
    }
}
