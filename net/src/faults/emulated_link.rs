//! An emulated link with a rate and a queue of limited size.

use super::QueueLimit;
use std::collections::VecDeque;
use std::time::Duration;
use urxe_proto::time::Time;

/// An emulated link: packets leave it one after the other, at its rate.
pub(super) struct EmulatedLink {
    rate: u64,
    limit: QueueLimit,
    /// When each queued packet has left, and its bytes.
    queue: VecDeque<(Time, u64)>,
    queued_bytes: u64,
    /// When the last packet has left.
    busy_until: Time,
}

impl EmulatedLink {
    /// An idle link of `rate` bits per second.
    pub(super) fn new(rate: u64, limit: QueueLimit) -> Self {
        Self {
            rate,
            limit,
            queue: VecDeque::new(),
            queued_bytes: 0,
            busy_until: Time(0),
        }
    }

    /// Queues a packet of `bytes` bytes. Returns when it has left, or `None` if the queue is full.
    pub(super) fn send(&mut self, bytes: u64, now: Time) -> Option<Time> {
        while let Some(&(_, left)) = self.queue.front().filter(|(at, _)| *at <= now) {
            self.queue.pop_front();
            self.queued_bytes -= left;
        }
        let is_full = match self.limit {
            QueueLimit::Packets(packets) => self.queue.len() as u64 >= packets,
            // A packet larger than the queue passes if the queue is empty.
            QueueLimit::Bytes(limit) => !self.queue.is_empty() && self.queued_bytes + bytes > limit,
        };
        if is_full {
            return None;
        }
        let takes = Duration::from_nanos(bytes * 8 * 1_000_000_000 / self.rate);
        self.busy_until = self.busy_until.max(now) + takes;
        self.queue.push_back((self.busy_until, bytes));
        self.queued_bytes += bytes;
        Some(self.busy_until)
    }
}
