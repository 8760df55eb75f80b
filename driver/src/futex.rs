//! futex(2) between the threads of a process. `tests/models` replaces this module by a model of the
//! kernel's.

use rustix::thread::futex::{self, Flags};
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};

/// Sleeps until a wake-up, if `word` is `expected`. May return without a wake-up.
pub(crate) fn wait(word: &AtomicU32, expected: u32) {
    let _ = futex::wait(word, Flags::PRIVATE, expected, None);
}

/// Wakes one thread that waits on `word`, if there is one.
pub(crate) fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, 1);
}
