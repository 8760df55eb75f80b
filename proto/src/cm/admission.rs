//! Requests that wait until the backlog of their listener has room.
//!
//! A peer retransmits a dropped request after seconds (4.3 s for the RDMA CM), so a burst of
//! connections that exceeds the backlog would take as long. A request that waits here is reported
//! as soon as the program takes up another.

use super::listener::ListenerId;
use super::wire::Req;
use super::{Address, timing};
use crate::time::Time;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The most requests that wait, for all listeners: less than 8 MiB. Further ones are dropped.
const MAX_WAITING: usize = 16_384;

/// A request, and how its message arrived.
#[derive(Debug)]
pub(super) struct Waiting {
    pub address: Address,
    pub transaction: u64,
    pub req: Req,
    /// The peer has given up if nothing is received from it until then.
    expires: Time,
}

impl Waiting {
    /// Returns a request whose message arrived at `now`.
    pub fn new(address: Address, transaction: u64, req: &Req, now: Time) -> Self {
        Waiting {
            address,
            transaction,
            req: *req,
            expires: expiry(req, now),
        }
    }

    fn has_expired(&self, now: Time) -> bool {
        now >= self.expires
    }
}

/// Returns the time by which the peer retransmits a request that arrived at `now`.
fn expiry(req: &Req, now: Time) -> Time {
    let ack_timeout = req.primary.local_ack_timeout;
    now + timing::retransmission_of_peer(req.remote_response_timeout, ack_timeout)
}

/// The waiting requests by listener, each queue in the order of arrival. `K` identifies a peer's
/// request.
#[derive(Debug)]
pub(super) struct Admission<K> {
    queues: HashMap<ListenerId, VecDeque<K>>,
    requests: HashMap<K, Box<Waiting>>,
    /// The number of entries of all queues, including those whose request was withdrawn.
    queued: usize,
}

impl<K> Default for Admission<K> {
    fn default() -> Self {
        Admission {
            queues: HashMap::new(),
            requests: HashMap::new(),
            queued: 0,
        }
    }
}

impl<K: Copy + Eq + Hash> Admission<K> {
    /// Adds a request at `now`. Returns false if there is no room.
    pub fn add(&mut self, listener: ListenerId, key: K, request: Waiting, now: Time) -> bool {
        if self.queued >= MAX_WAITING {
            self.remove_expired(now);
        }
        if self.queued >= MAX_WAITING {
            return false;
        }
        self.queued += 1;
        self.queues.entry(listener).or_default().push_back(key);
        self.requests.insert(key, Box::new(request));
        true
    }

    /// Extends the wait of a request that was received again at `now`, in a message with this
    /// transaction ID. Returns false if no such request waits; an expired one, and another one with
    /// the key, are removed.
    pub fn extend(&mut self, key: &K, transaction: u64, now: Time) -> bool {
        let Some(request) = self.requests.get_mut(key) else {
            return false;
        };
        if request.transaction != transaction || request.has_expired(now) {
            self.requests.remove(key);
            return false;
        }
        request.expires = expiry(&request.req, now);
        true
    }

    /// Removes a request that its peer has withdrawn. Returns whether there was one.
    pub fn withdraw(&mut self, key: &K) -> bool {
        self.requests.remove(key).is_some()
    }

    /// Removes and returns the oldest request for a listener whose peer still waits.
    pub fn next(&mut self, listener: ListenerId, now: Time) -> Option<Box<Waiting>> {
        let queue = self.queues.get_mut(&listener)?;
        while let Some(key) = queue.pop_front() {
            self.queued -= 1;
            let request = self.requests.remove(&key);
            if let Some(request) = request.filter(|request| !request.has_expired(now)) {
                return Some(request);
            }
        }
        self.queues.remove(&listener);
        None
    }

    /// Removes all requests for a listener.
    pub fn close(&mut self, listener: ListenerId) {
        let queue = self.queues.remove(&listener).unwrap_or_default();
        self.queued -= queue.len();
        for key in queue {
            self.requests.remove(&key);
        }
    }

    /// Removes the requests whose peers have given up or withdrawn them.
    fn remove_expired(&mut self, now: Time) {
        self.requests.retain(|_, request| !request.has_expired(now));
        for queue in self.queues.values_mut() {
            queue.retain(|key| self.requests.contains_key(key));
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.queued = self.queues.values().map(VecDeque::len).sum();
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}
