//! The messages that this process has already printed.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of distinct messages; further ones are not printed.
const CAPACITY: usize = 256;

/// A set of message texts that only grows.
///
/// It takes no lock: a child that is forked while another thread prints must still be able to
/// print. Texts are kept as 64-bit hashes.
pub(super) struct Printed {
    hashes: [AtomicU64; CAPACITY],
    hasher: OnceLock<RandomState>,
}

impl Printed {
    pub(super) const fn new() -> Self {
        Self {
            hashes: [const { AtomicU64::new(0) }; CAPACITY],
            hasher: OnceLock::new(),
        }
    }

    /// Adds a text. Returns whether to print it: it was absent, and there was space for it.
    pub(super) fn insert(&self, text: &str) -> bool {
        // 0 marks a free slot.
        let hash = self
            .hasher
            .get_or_init(RandomState::new)
            .hash_one(text)
            .max(1);
        for slot in &self.hashes {
            match slot.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(taken) if taken == hash => return false,
                Err(_) => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_printed_once() {
        let printed = Printed::new();
        assert!(printed.insert("port 4791 is taken"));
        assert!(!printed.insert("port 4791 is taken"));
        assert!(printed.insert("port 4792 is taken"));
        assert!(!printed.insert("port 4791 is taken"));
    }

    #[test]
    fn a_full_set_prints_nothing_more() {
        let printed = Printed::new();
        let accepted = (0..2 * CAPACITY).filter(|number| printed.insert(&number.to_string()));
        assert_eq!(accepted.count(), CAPACITY);
        assert!(!printed.insert("0"));
    }
}
