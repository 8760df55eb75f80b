//! The responder's out-of-order queue: requests behind a gap, queued until the gap closes.
//!
//! To the peer this is indistinguishable from a network that delivered them late, so it works with
//! any peer. Requests are queued unexecuted and executed in PSN order: no effect is visible in
//! memory before.
//!
//! A forged request in the queue is executed in place of the real one. Therefore each request is
//! queued for a limited time, longer while missing ones arrive, and executed only if its UDP source port is that of the request that
//! closed the gap. Memory is bounded for each queue pair and, by an [`OutOfOrderBudget`], for all
//! that share one.

use super::congestion::MAX_WINDOW;
use super::loss_recovery::LossRecovery;
use crate::ids::Gid;
use crate::psn::Psn;
use crate::service::Context;
use crate::time::Time;
use crate::wire::{Header, Packet};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The largest distance from the expected PSN at which a request is queued.
///
/// An attacker has to guess a PSN within it. With packets of 1024 bytes it is the memory that a
/// connection may use; a larger window is limited by the memory before.
const MAX_DISTANCE: i32 = 1 << 14;

/// The largest distance from the expected PSN at which a request proves that its predecessors were
/// sent.
///
/// It is the largest window of a requester of the same kind. Requests beyond it cause the NAK for a
/// gap, and leave no other trace.
const MAX_PLAUSIBLE_DISTANCE: i32 = MAX_WINDOW as i32;

/// A request is queued for this many round trips, enough to retransmit the missing one repeatedly.
const ROUND_TRIPS: u32 = 8;

/// A request is queued for at least this many ACK timeouts.
///
/// A peer without a faster probe retransmits after each.
const ACK_TIMEOUTS: u32 = 2;

/// The time for which a request is queued while there is neither a round-trip estimate nor an ACK
/// timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// The minimum time for which a request is queued: the peer process may be descheduled for that
/// long.
const TIMEOUT_FLOOR: Duration = Duration::from_millis(100);

/// The maximum time for which a request is queued, whatever the ACK timeout is.
const TIMEOUT_CEILING: Duration = Duration::from_secs(10);

/// Returns how long a request is queued on a connection with this loss recovery.
fn timeout(recovery: &LossRecovery) -> Duration {
    let round_trips = recovery.smoothed_round_trip().map(|rtt| rtt * ROUND_TRIPS);
    let ack_timeouts = recovery.ack_timeout().map(|timeout| timeout * ACK_TIMEOUTS);
    round_trips
        .max(ack_timeouts)
        .map_or(DEFAULT_TIMEOUT, |known| {
            known.clamp(TIMEOUT_FLOOR, TIMEOUT_CEILING)
        })
}

/// A memory budget shared by the out-of-order queues of several queue pairs.
///
/// A peer uses at most as much as then remains free: a single peer half of the budget, and each of
/// `n` peers with equal use `1/(n + 1)` of it. Shared buffers of switches have such dynamic
/// thresholds: each peer finds a share, and nothing is reserved for peers that lose no packets.
#[derive(Debug)]
pub struct OutOfOrderBudget {
    limit: usize,
    usage: Mutex<Usage>,
}

/// The bytes in use: of all peers, and of each that uses any.
#[derive(Debug)]
struct Usage {
    total: usize,
    peers: BTreeMap<Gid, usize>,
}

impl OutOfOrderBudget {
    /// Returns a budget of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        let usage = Usage {
            total: 0,
            peers: BTreeMap::new(),
        };
        OutOfOrderBudget {
            limit,
            usage: Mutex::new(usage),
        }
    }

    /// The bytes in use.
    pub fn used(&self) -> usize {
        self.usage().total
    }

    /// Locks the counts. Poisoning is ignored: no panic can occur between their changes.
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` for a peer. Returns false if its share has no room for them.
    fn take(&self, peer: Gid, bytes: usize) -> bool {
        let mut usage = self.usage();
        let total = usage.total.saturating_add(bytes);
        let of_peer = usage.peers.get(&peer).copied().unwrap_or(0) + bytes;
        let fits = total <= self.limit && of_peer <= self.limit - total;
        if fits {
            usage.total = total;
            usage.peers.insert(peer, of_peer);
        }
        fits
    }

    fn give_back(&self, peer: Gid, bytes: usize) {
        let mut usage = self.usage();
        usage.total -= bytes;
        if let Some(of_peer) = usage.peers.get_mut(&peer) {
            *of_peer -= bytes;
            if *of_peer == 0 {
                usage.peers.remove(&peer);
            }
        }
    }
}

/// A request in the queue.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    header: Header,
    payload: Box<[u8]>,
    source_port: u16,
    /// The time at which it is dropped, unless a missing request has arrived since.
    until: Time,
    /// The time at which it is dropped in any case.
    latest: Time,
}

impl QueuedRequest {
    /// The request as it arrived.
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet {
            header: self.header,
            payload: &self.payload,
        }
    }

    fn psn(&self) -> Psn {
        self.header.bth.psn
    }

    /// The time at which it is dropped, if the arrival of a missing request keeps all until `kept`.
    fn expiry(&self, kept: Time) -> Time {
        self.until.max(kept.min(self.latest))
    }

    fn bytes(&self) -> usize {
        size_of::<QueuedRequest>() + self.payload.len()
    }
}

/// The out-of-order queue, in PSN order.
#[derive(Debug)]
pub(super) struct OutOfOrder {
    queue: VecDeque<QueuedRequest>,
    bytes: usize,
    /// The maximum memory, in bytes.
    limit: usize,
    budget: Option<Arc<OutOfOrderBudget>>,
    /// The peer for which the memory is reserved, while there is any.
    peer: Gid,
    /// A lower bound of the time at which the first request is dropped.
    expires_at: Time,
    /// The time until which the arrival of the last missing request keeps the others.
    kept_until: Time,
    /// The UDP source port of the last request that arrived in order.
    source_port: Option<u16>,
    /// The highest PSN of a request that was not queued: it proves a gap before it.
    dropped: Option<Psn>,
}

impl OutOfOrder {
    /// Returns an empty queue with room for `limit` bytes; with 0, no request is queued.
    pub(super) fn new(limit: u32) -> Self {
        OutOfOrder {
            queue: VecDeque::new(),
            bytes: 0,
            limit: limit as usize,
            budget: None,
            peer: Gid::default(),
            expires_at: Time::NEVER,
            kept_until: Time(0),
            source_port: None,
            dropped: None,
        }
    }

    /// Empties the queue, and allocates from `budget` from now on.
    pub(super) fn share(&mut self, budget: Arc<OutOfOrderBudget>) {
        self.clear();
        self.budget = Some(budget);
    }

    /// Handles the arrival of a request with the expected PSN from this UDP source port.
    ///
    /// The repair of many gaps takes many round trips. Each one that closes keeps the requests
    /// behind the others.
    #[inline]
    pub(super) fn arrived_in_order(
        &mut self,
        source_port: u16,
        now: Time,
        recovery: &LossRecovery,
    ) {
        self.source_port = Some(source_port);
        if !self.queue.is_empty() {
            self.kept_until = now + timeout(recovery);
        }
    }

    /// Keeps a request that arrived behind the gap at `expected`.
    ///
    /// A second request with the same PSN is dropped.
    pub(super) fn insert(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        source_port: u16,
        expected: Psn,
        recovery: &LossRecovery,
    ) {
        if self.limit == 0 {
            return;
        }
        let psn = packet.header.bth.psn;
        let ahead = psn.diff(expected);
        if ahead > MAX_PLAUSIBLE_DISTANCE {
            return;
        }
        let at = self
            .queue
            .partition_point(|queued| queued.psn().before(psn));
        if self.queue.get(at).is_some_and(|queued| queued.psn() == psn) {
            return;
        }
        let is_foreign = self.source_port.is_some_and(|port| port != source_port);
        let bytes = size_of::<QueuedRequest>() + packet.payload.len();
        if self.queue.is_empty() {
            self.peer = cx.attr.av.dgid;
        }
        if is_foreign {
            self.note_dropped(psn);
            return;
        }
        if ahead > MAX_DISTANCE || !self.reserve(bytes) {
            cx.counters.out_of_order_dropped += 1;
            self.note_dropped(psn);
            return;
        }
        let queued = QueuedRequest {
            header: packet.header,
            payload: packet.payload.into(),
            source_port,
            until: cx.now + timeout(recovery),
            latest: cx.now + TIMEOUT_CEILING,
        };
        if self.queue.is_empty() {
            self.expires_at = Time::NEVER;
            self.kept_until = Time(0);
        }
        self.expires_at = self.expires_at.min(queued.until);
        self.queue.insert(at, queued);
    }

    /// Removes the request with the expected PSN, and drops those before it.
    #[inline]
    pub(super) fn take(&mut self, expected: Psn) -> Option<QueuedRequest> {
        match self.queue.is_empty() {
            true => None,
            false => self.take_queued(expected),
        }
    }

    fn take_queued(&mut self, expected: Psn) -> Option<QueuedRequest> {
        loop {
            let first = self.queue.front()?.psn();
            if first.after(expected) {
                return None;
            }
            let queued = self.queue.pop_front()?;
            self.release(queued.bytes());
            if first != expected {
                continue;
            }
            if Some(queued.source_port) == self.source_port {
                return Some(queued);
            }
            self.note_dropped(first);
        }
    }

    /// The time at which [`OutOfOrder::expire`] is to be called next.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        match self.queue.is_empty() {
            true => Time::NEVER,
            false => self.expires_at,
        }
    }

    /// Drops requests that were queued for too long.
    pub(super) fn expire(&mut self, now: Time) {
        if now < self.deadline() {
            return;
        }
        let mut freed = 0;
        let (mut expires_at, mut dropped) = (Time::NEVER, None);
        self.queue.retain(|queued| {
            let expiry = queued.expiry(self.kept_until);
            let stays = now < expiry;
            if stays {
                expires_at = expires_at.min(expiry);
            } else {
                freed += queued.bytes();
                dropped = Some(queued.psn());
            }
            stays
        });
        self.expires_at = expires_at;
        self.release(freed);
        if let Some(psn) = dropped {
            self.note_dropped(psn);
        }
    }

    /// Whether no request is queued, and none is known to have been dropped.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.queue.is_empty() && self.dropped.is_none()
    }

    /// Whether a request after `expected` is known to have been sent, in the queue or dropped.
    ///
    /// A dropped request counts once: the requester is informed by the NAK that follows.
    pub(super) fn shows_gap(&mut self, expected: Psn) -> bool {
        let dropped = self.dropped.take();
        !self.queue.is_empty() || dropped.is_some_and(|psn| !psn.before(expected))
    }

    /// Drops all requests.
    pub(super) fn clear(&mut self) {
        self.release(self.bytes);
        self.queue = VecDeque::new();
        self.dropped = None;
    }

    /// Drops all requests, and resets the source port.
    pub(super) fn reset(&mut self) {
        self.clear();
        self.source_port = None;
    }

    fn note_dropped(&mut self, psn: Psn) {
        if self.dropped.is_none_or(|dropped| psn.after(dropped)) {
            self.dropped = Some(psn);
        }
    }

    fn reserve(&mut self, bytes: usize) -> bool {
        let fits = self.bytes + bytes <= self.limit;
        let budget = self.budget.as_ref();
        let reserved = fits && budget.is_none_or(|budget| budget.take(self.peer, bytes));
        if reserved {
            self.bytes += bytes;
        }
        reserved
    }

    fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(budget) = &self.budget {
            budget.give_back(self.peer, bytes);
        }
    }
}

impl Default for OutOfOrder {
    /// Returns a queue that keeps no request.
    fn default() -> Self {
        OutOfOrder::new(0)
    }
}

impl Drop for OutOfOrder {
    fn drop(&mut self) {
        self.clear();
    }
}
