//! A limit on the unanswered REQs to a destination, with a FIFO of the waiting requests.
//!
//! A peer drops REQs that exceed the buffer of its socket, its queue of received MADs, or the
//! backlog of its listener. A lost REQ costs a timeout. So at most [`Destination::limit`] REQs to a
//! destination are unanswered, and an answer admits the next one. The limit grows by one for each
//! answer while round trips are short, and is halved when a REQ is lost, as the congestion window
//! of TCP (RFC 5681) with the delay as an additional signal.
//!
//! Early retransmissions pass the limit, too, before requests that came later. A REQ without an
//! early retransmission left no longer counts: a peer whose program takes its time delays other
//! requests by a few timeouts only.

use super::CommId;
use super::round_trip::{RoundTrip, ShortestRoundTrip};
use super::wire::ServiceId;
use crate::ids::Gid;
use crate::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The first limit. A socket buffer of Linux's default size holds 277 MADs, the GSI of the kernel
/// 512.
const FIRST_LIMIT: usize = 128;

/// The smallest limit.
const MIN_LIMIT: usize = 8;

/// The largest limit: the largest backlog of a listener in the kernel.
const MAX_LIMIT: usize = 1024;

/// The limit grows while round trips take less than this multiple of the shortest one.
const SHORT_ROUND_TRIP: u32 = 2;

/// The largest number of destinations whose limits are kept while they have no requests.
const MAX_IDLE: usize = 1024;

/// A service of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Target {
    pub remote: Gid,
    pub service: ServiceId,
}

/// The end of the wait for the answer to a REQ that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The peer answered, after this time if that is a measurement: the REQ was not retransmitted,
    /// and the answer is no REJ.
    Answered(Option<Duration>),
    /// The program withdrew the request, or all early retransmissions were unanswered.
    Withdrawn,
}

#[derive(Debug)]
struct Destination {
    limit: usize,
    /// The REQs that count, by their place.
    unanswered: BTreeMap<u64, CommId>,
    /// The waiting requests by their place.
    waiting: BTreeMap<u64, CommId>,
    round_trip: RoundTrip,
    shortest: ShortestRoundTrip,
    /// The time of the latest answer.
    answered: Option<Time>,
    /// Until then, further losses belong to the same event and do not reduce the limit.
    reduced_until: Time,
}

impl Default for Destination {
    fn default() -> Self {
        Destination {
            limit: FIRST_LIMIT,
            unanswered: BTreeMap::new(),
            waiting: BTreeMap::new(),
            round_trip: RoundTrip::default(),
            shortest: ShortestRoundTrip::default(),
            answered: None,
            reduced_until: Time(0),
        }
    }
}

impl Destination {
    fn is_idle(&self) -> bool {
        self.unanswered.is_empty() && self.waiting.is_empty()
    }

    /// Records the time of an answer, which arrives at `now`.
    fn measured(&mut self, after: Duration, now: Time) {
        self.round_trip.add(after);
        let is_short = after <= self.shortest.add(after, now) * SHORT_ROUND_TRIP;
        if is_short && !self.waiting.is_empty() {
            self.limit = (self.limit + 1).min(MAX_LIMIT);
        }
    }
}

/// The limits of all destinations.
#[derive(Debug, Default)]
pub(super) struct RequestPacing {
    destinations: HashMap<Target, Destination>,
    /// The place of the next request.
    next_place: u64,
}

impl RequestPacing {
    /// Adds a request to the FIFO of its destination. Returns its place.
    pub fn add(&mut self, target: Target, id: CommId) -> u64 {
        if self.destinations.len() >= MAX_IDLE && !self.destinations.contains_key(&target) {
            self.destinations.retain(|_, other| !other.is_idle());
        }
        let place = self.next_place;
        self.next_place += 1;
        let destination = self.destinations.entry(target).or_default();
        destination.waiting.insert(place, id);
        place
    }

    /// Removes and returns the first waiting request, if the limit permits another REQ; it counts
    /// from now on.
    pub fn admit(&mut self, target: Target) -> Option<CommId> {
        let destination = self.destinations.get_mut(&target)?;
        if destination.unanswered.len() >= destination.limit {
            return None;
        }
        let (place, id) = destination.waiting.pop_first()?;
        destination.unanswered.insert(place, id);
        Some(id)
    }

    /// Removes a waiting request.
    pub fn remove(&mut self, target: Target, place: u64) {
        if let Some(destination) = self.destinations.get_mut(&target) {
            destination.waiting.remove(&place);
        }
    }

    /// The time after which an unanswered REQ is first retransmitted.
    pub fn timeout(&self, target: Target) -> Duration {
        let destination = self.destinations.get(&target);
        destination.map_or(RoundTrip::FIRST_TIMEOUT, |d| d.round_trip.timeout())
    }

    /// The time of the latest answer.
    pub fn answered(&self, target: Target) -> Option<Time> {
        self.destinations.get(&target)?.answered
    }

    /// Records that a REQ no longer counts. After the first measurement, returns the REQs that were
    /// sent before it, whose timeout is too long.
    pub fn finish(
        &mut self,
        target: Target,
        place: u64,
        outcome: Outcome,
        now: Time,
    ) -> Vec<CommId> {
        let Some(destination) = self.destinations.get_mut(&target) else {
            return Vec::new();
        };
        destination.unanswered.remove(&place);
        if let Outcome::Answered(after) = outcome {
            destination.answered = Some(now);
            if let Some(after) = after {
                let is_first = !destination.round_trip.is_measured();
                destination.measured(after, now);
                if is_first {
                    return destination.unanswered.values().copied().collect();
                }
            }
        }
        Vec::new()
    }

    /// Records that a REQ was not answered in time. It waits again, at its place.
    pub fn lost(&mut self, target: Target, place: u64, id: CommId, now: Time) {
        let Some(destination) = self.destinations.get_mut(&target) else {
            return;
        };
        destination.unanswered.remove(&place);
        destination.waiting.insert(place, id);
        if now >= destination.reduced_until {
            destination.limit = (destination.limit / 2).max(MIN_LIMIT);
            destination.round_trip.back_off();
            destination.reduced_until = now + destination.round_trip.timeout();
        }
    }

    /// Records an answer to a REQ that no longer counts.
    pub fn late_answer(&mut self, target: Target, now: Time) {
        if let Some(destination) = self.destinations.get_mut(&target) {
            destination.answered = Some(now);
        }
    }

    /// Whether no request waits and no REQ counts.
    pub fn is_idle(&self) -> bool {
        self.destinations.values().all(Destination::is_idle)
    }
}
