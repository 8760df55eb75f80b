//! Retransmission of a message until it is answered (12.9.8.1).

use super::wire::Mad;
use crate::time::Time;
use std::time::Duration;

/// An unanswered message.
#[derive(Debug)]
pub(super) struct Retransmission {
    mad: Box<Mad>,
    left: u8,
    interval: Duration,
    due: Time,
}

impl Retransmission {
    /// Returns the state of `mad`, which is sent at `now` and retransmitted up to `retries` times.
    pub fn new(mad: Box<Mad>, retries: u8, interval: Duration, now: Time) -> Self {
        Retransmission {
            mad,
            left: retries,
            interval,
            due: now + interval,
        }
    }

    /// The message.
    pub fn mad(&self) -> Box<Mad> {
        self.mad.clone()
    }

    /// The time of the next retransmission.
    pub fn due(&self) -> Time {
        self.due
    }

    /// Postpones the retransmission: the peer has announced an answer within `more`.
    pub fn extend(&mut self, now: Time, more: Duration) {
        self.due = self.due.max(now + more);
    }

    /// Returns the message to retransmit, or `None` after the last retry.
    pub fn retransmit(&mut self, now: Time) -> Option<Box<Mad>> {
        self.left = self.left.checked_sub(1)?;
        self.due = now + self.interval;
        Some(self.mad())
    }
}
