//! Retransmission of a message until it is answered (12.9.8.1).
//!
//! The first retransmissions may follow measured round trips ([`Retransmission::early`]). They
//! count, and the others are spread over the rest of the time that all would take at their
//! interval.

use super::wire::Mad;
use crate::time::Time;
use std::time::Duration;

/// The largest number of retransmissions that follow measured round trips.
const MAX_EARLY: u8 = 5;

/// An unanswered message.
#[derive(Debug)]
pub(super) struct Retransmission {
    mad: Box<Mad>,
    left: u8,
    interval: Duration,
    due: Time,
    sent: Time,
    /// The time of the latest transmission.
    latest: Time,
    /// The time at which the message has failed.
    ends: Time,
    /// The number of early retransmissions left, and the delay of the latest one.
    early: (u8, Duration),
    is_repeated: bool,
}

impl Retransmission {
    /// Returns the state of `mad`, which is sent at `now` and retransmitted up to `retries` times.
    pub fn new(mad: Box<Mad>, retries: u8, interval: Duration, now: Time) -> Self {
        Retransmission {
            mad,
            left: retries,
            interval,
            due: now + interval,
            sent: now,
            latest: now,
            ends: now + interval * (u32::from(retries) + 1),
            early: (0, interval),
            is_repeated: false,
        }
    }

    /// Makes the first retransmission follow after `timeout` and the next ones after doubled
    /// delays, while these are shorter than the interval. It is not due before `now`.
    pub fn early(mut self, timeout: Duration, now: Time) -> Self {
        if timeout < self.interval && self.left > 0 {
            self.early = (MAX_EARLY, timeout);
            self.due = (self.sent + timeout).max(now);
        }
        self
    }

    /// The message.
    pub fn mad(&self) -> Box<Mad> {
        self.mad.clone()
    }

    /// The time of the next retransmission.
    pub fn due(&self) -> Time {
        self.due
    }

    /// The time at which the message was first sent.
    pub fn sent(&self) -> Time {
        self.sent
    }

    /// Whether the message was retransmitted.
    pub fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Postpones the retransmission: the peer has announced an answer within `more`.
    pub fn extend(&mut self, now: Time, more: Duration) {
        let before = self.due;
        // A retransmission that would have been early is not: the peer has the message.
        let regular = self.due.max(self.sent + self.interval);
        self.due = regular.max(now + more);
        self.ends = self.ends + self.due.since(before);
        self.early.0 = 0;
    }

    /// Makes the next retransmission follow after the interval: the peer has the message, and would
    /// not accept it again before.
    pub fn not_early(&mut self, now: Time) {
        self.early.0 = 0;
        self.due = self.due.max(now + self.interval);
    }

    /// Returns the message to send again because the peer has repeated its own. An early
    /// retransmission is postponed, but not beyond the time at which the message has failed.
    pub fn repeat(&mut self, now: Time) -> Box<Mad> {
        self.is_repeated = true;
        if let (1.., delay) = self.early {
            self.due = self.due.max((now + delay).min(self.ends));
        }
        self.mad()
    }

    /// Whether the next retransmission is an early one.
    pub fn is_early(&self) -> bool {
        self.early.0 > 0
    }

    /// The time at which the message has failed.
    pub fn ends(&self) -> Time {
        self.ends
    }

    /// Returns the message to retransmit, or `None` after the last retry.
    pub fn retransmit(&mut self, now: Time) -> Option<Box<Mad>> {
        let (_, before) = self.early;
        self.retransmit_early(now, before * 2)
    }

    /// Like [`Self::retransmit`]. If a further early retransmission is left, it follows after
    /// `timeout`.
    pub fn retransmit_early(&mut self, now: Time, timeout: Duration) -> Option<Box<Mad>> {
        self.left = self.left.checked_sub(1)?;
        self.is_repeated = true;
        self.latest = now;
        let early = self.early.0.saturating_sub(1);
        let delay = if early > 0 && self.left > 0 && timeout < self.interval {
            self.early = (early, timeout);
            timeout
        } else {
            self.early.0 = 0;
            let rest = self.ends.since(now) / (u32::from(self.left) + 1);
            rest.max(self.interval)
        };
        self.due = now + delay;
        Some(self.mad())
    }

    /// The timeout of the next early retransmission: `measured` if the peer has answered other
    /// messages since the latest transmission, at `answered`, or else the double of the one before.
    pub fn early_timeout(&self, measured: Duration, answered: Option<Time>) -> Duration {
        match answered {
            Some(answered) if answered > self.latest => measured,
            _ => measured.max(self.early.1 * 2),
        }
    }
}
