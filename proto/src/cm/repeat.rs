//! A message that is repeated until its answer comes (12.9.8.1).

use super::wire::Mad;
use crate::time::Time;
use std::time::Duration;

/// A message that waits for its answer.
#[derive(Debug)]
pub(super) struct Repeat {
    mad: Box<Mad>,
    left: u8,
    interval: Duration,
    due: Time,
}

impl Repeat {
    /// `mad`, which is sent `now`, and up to `retries` times more.
    pub fn new(mad: Box<Mad>, retries: u8, interval: Duration, now: Time) -> Self {
        Repeat {
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

    /// When it is due again.
    pub fn due(&self) -> Time {
        self.due
    }

    /// The peer has it, and will answer within `more`.
    pub fn extend(&mut self, now: Time, more: Duration) {
        self.due = self.due.max(now + more);
    }

    /// It is due: the message to send again, or `None` when it was sent often enough.
    pub fn again(&mut self, now: Time) -> Option<Box<Mad>> {
        self.left = self.left.checked_sub(1)?;
        self.due = now + self.interval;
        Some(self.mad())
    }
}
