//! Whether a blocking call receives before it sleeps.
//!
//! A blocking call sleeps in poll(2), with the sockets among its descriptors. If a packet has
//! arrived, poll(2) returns at once, and the call receives it then. So a receive before the sleep
//! is never necessary. It saves a poll(2) if it finds packets, and is wasted if it finds none,
//! which is usual where the peer's answer takes longer than the program needs to begin its wait.

use super::limits::SKIPPED_RECEIVES;
use std::sync::atomic::{AtomicU32, Ordering};

/// The policy, by the result of earlier receives.
#[derive(Debug)]
pub(crate) struct ReceiveBeforeSleep {
    /// Blocking calls that will sleep without receiving first.
    skips: AtomicU32,
}

impl ReceiveBeforeSleep {
    pub(crate) fn new() -> Self {
        ReceiveBeforeSleep {
            skips: AtomicU32::new(0),
        }
    }

    /// Returns whether a blocking call receives before it sleeps. If so, the caller reports the
    /// result to [`ReceiveBeforeSleep::received`].
    pub(crate) fn receives(&self) -> bool {
        // Concurrent calls may count as one: the number of skips need not be exact.
        let skips = self.skips.load(Ordering::Relaxed);
        if skips > 0 {
            self.skips.store(skips - 1, Ordering::Relaxed);
        }
        skips == 0
    }

    /// Records whether a receive before a sleep found packets.
    pub(crate) fn received(&self, found: bool) {
        let skips = if found { 0 } else { SKIPPED_RECEIVES };
        self.skips.store(skips, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_after_an_empty_receive_sleep_at_once_until_the_next_trial() {
        let policy = ReceiveBeforeSleep::new();
        for _ in 0..3 {
            assert!(policy.receives());
            policy.received(false);
            assert!((0..SKIPPED_RECEIVES).all(|_| !policy.receives()));
        }
    }

    #[test]
    fn calls_receive_while_that_finds_packets() {
        let policy = ReceiveBeforeSleep::new();
        for _ in 0..3 {
            assert!(policy.receives());
            policy.received(true);
        }
    }
}
