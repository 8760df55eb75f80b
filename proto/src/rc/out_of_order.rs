//! The out-of-order queue of a responder: requests that arrived after a gap, kept until it closes.
//!
//! The peer cannot tell this from a network that delivered them late, so it is legal with any peer. They
//! are kept as they arrived and executed in the order of their PSNs: nothing of them is visible in memory
//! before that.
//!
//! A forged request that is kept is executed in the place of the real one. Therefore each is kept for a
//! limited time, and executed only if its UDP source port is that of the request that closed the gap. The
//! memory is bounded for the queue pair and, by an [`OutOfOrderBudget`], for all that share one.

use super::retransmit::Retransmit;
use crate::psn::Psn;
use crate::time::Time;
use crate::wire::{Header, Packet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The most PSNs that a request is ahead of the expected one and still kept. This is what the sender of a
/// forged request has to guess.
const SPAN: i32 = 1024;

/// The most PSNs that a request is ahead of the expected one and still taken as evidence that those before
/// it were sent: no requester has more outstanding. Requests beyond it get the NAK for a gap, and are
/// forgotten.
const PLAUSIBLE: i32 = 4 * SPAN;

/// A request is kept for so many round trips: the peer has the time to send what is missing more than once.
const ROUND_TRIPS: u32 = 8;

/// A request is kept for so many ACK timeouts at least. A peer without a quicker probe sends again after
/// each.
const ACK_TIMEOUTS: u32 = 2;

/// How long a request is kept while neither a round trip was measured nor an ACK timeout is set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// The least time for which a request is kept: the process of the peer may not run for so long.
const TIMEOUT_FLOOR: Duration = Duration::from_millis(100);

/// The most time for which a request is kept, however long the ACK timeout is.
const TIMEOUT_CEILING: Duration = Duration::from_secs(10);

/// How long a request is kept on a connection with these timers.
fn timeout(timers: &Retransmit) -> Duration {
    let round_trips = timers.smoothed_round_trip().map(|rtt| rtt * ROUND_TRIPS);
    let ack_timeouts = timers.ack_timeout().map(|timeout| timeout * ACK_TIMEOUTS);
    round_trips
        .max(ack_timeouts)
        .map_or(DEFAULT_TIMEOUT, |known| {
            known.clamp(TIMEOUT_FLOOR, TIMEOUT_CEILING)
        })
}

/// The memory that the out-of-order queues of several queue pairs may take together.
#[derive(Debug)]
pub struct OutOfOrderBudget {
    limit: usize,
    used: AtomicUsize,
}

impl OutOfOrderBudget {
    /// One of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        OutOfOrderBudget {
            limit,
            used: AtomicUsize::new(0),
        }
    }

    /// The bytes that are in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, if there are so many.
    fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A request that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    header: Header,
    payload: Box<[u8]>,
    source_port: u16,
    /// When it is dropped.
    until: Time,
}

impl Kept {
    /// It as it arrived.
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet {
            header: self.header,
            payload: &self.payload,
        }
    }

    fn psn(&self) -> Psn {
        self.header.bth.psn
    }

    fn bytes(&self) -> usize {
        size_of::<Kept>() + self.payload.len()
    }
}

/// The requests after a gap, in the order of their PSNs.
#[derive(Debug)]
pub(super) struct OutOfOrder {
    queue: VecDeque<Kept>,
    bytes: usize,
    /// The most bytes of memory that they may take.
    limit: usize,
    budget: Option<Arc<OutOfOrderBudget>>,
    /// Not after the time at which the first of them is dropped.
    expires_at: Time,
    /// The UDP source port of the last request that arrived in order.
    source_port: Option<u16>,
    /// The highest PSN of a request that was not kept: there is a gap before it, whatever arrives first.
    missed: Option<Psn>,
}

impl OutOfOrder {
    /// An empty queue with room for `limit` bytes; 0 to keep nothing.
    pub(super) fn new(limit: u32) -> Self {
        OutOfOrder {
            queue: VecDeque::new(),
            bytes: 0,
            limit: limit as usize,
            budget: None,
            expires_at: Time::NEVER,
            source_port: None,
            missed: None,
        }
    }

    /// Takes its memory from this budget, too, from now on. The queue is empty.
    pub(super) fn share(&mut self, budget: Arc<OutOfOrderBudget>) {
        self.clear();
        self.budget = Some(budget);
    }

    /// A request with the expected PSN arrived from this UDP port.
    pub(super) fn arrived_in_order(&mut self, source_port: u16) {
        self.source_port = Some(source_port);
    }

    /// Keeps a request that arrived when `expected` was the next PSN. A second one with the same PSN is
    /// dropped.
    pub(super) fn keep(
        &mut self,
        packet: &Packet<'_>,
        source_port: u16,
        expected: Psn,
        now: Time,
        timers: &Retransmit,
    ) {
        if self.limit == 0 {
            return;
        }
        let psn = packet.header.bth.psn;
        let ahead = psn.diff(expected);
        if ahead > PLAUSIBLE {
            return;
        }
        let at = self.queue.partition_point(|kept| kept.psn().before(psn));
        if self.queue.get(at).is_some_and(|kept| kept.psn() == psn) {
            return;
        }
        let is_foreign = self.source_port.is_some_and(|port| port != source_port);
        let bytes = size_of::<Kept>() + packet.payload.len();
        if ahead > SPAN || is_foreign || !self.reserve(bytes) {
            self.miss(psn);
            return;
        }
        let kept = Kept {
            header: packet.header,
            payload: packet.payload.into(),
            source_port,
            until: now + timeout(timers),
        };
        if self.queue.is_empty() {
            self.expires_at = Time::NEVER;
        }
        self.expires_at = self.expires_at.min(kept.until);
        self.queue.insert(at, kept);
    }

    /// Takes the request with the PSN that is expected now, and drops those before it.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Kept> {
        loop {
            let first = self.queue.front()?.psn();
            if first.after(expected) {
                return None;
            }
            let kept = self.queue.pop_front()?;
            self.release(kept.bytes());
            if first != expected {
                continue;
            }
            if Some(kept.source_port) == self.source_port {
                return Some(kept);
            }
            self.miss(first);
        }
    }

    /// When [`OutOfOrder::expire`] should be called next.
    pub(super) fn deadline(&self) -> Time {
        match self.queue.is_empty() {
            true => Time::NEVER,
            false => self.expires_at,
        }
    }

    /// Drops what was kept for too long.
    pub(super) fn expire(&mut self, now: Time) {
        if now < self.deadline() {
            return;
        }
        let mut freed = 0;
        let (mut expires_at, mut missed) = (Time::NEVER, None);
        self.queue.retain(|kept| {
            let stays = now < kept.until;
            if stays {
                expires_at = expires_at.min(kept.until);
            } else {
                freed += kept.bytes();
                missed = Some(kept.psn());
            }
            stays
        });
        self.expires_at = expires_at;
        self.release(freed);
        if let Some(psn) = missed {
            self.miss(psn);
        }
    }

    /// Whether a request after `expected` is known to have been sent, kept or not. Those that were not
    /// kept are reported once: the requester knows from then on.
    pub(super) fn tells_of_gap(&mut self, expected: Psn) -> bool {
        let missed = self.missed.take();
        !self.queue.is_empty() || missed.is_some_and(|psn| !psn.before(expected))
    }

    /// Drops all requests.
    pub(super) fn clear(&mut self) {
        self.release(self.bytes);
        self.queue = VecDeque::new();
        self.missed = None;
    }

    /// Drops all requests, and forgets the connection.
    pub(super) fn reset(&mut self) {
        self.clear();
        self.source_port = None;
    }

    fn miss(&mut self, psn: Psn) {
        if self.missed.is_none_or(|missed| psn.after(missed)) {
            self.missed = Some(psn);
        }
    }

    fn reserve(&mut self, bytes: usize) -> bool {
        let fits = self.bytes + bytes <= self.limit;
        let reserved = fits && self.budget.as_ref().is_none_or(|budget| budget.take(bytes));
        if reserved {
            self.bytes += bytes;
        }
        reserved
    }

    fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(budget) = &self.budget {
            budget.give_back(bytes);
        }
    }
}

impl Default for OutOfOrder {
    /// One that keeps nothing.
    fn default() -> Self {
        OutOfOrder::new(0)
    }
}

impl Drop for OutOfOrder {
    fn drop(&mut self) {
        self.clear();
    }
}
