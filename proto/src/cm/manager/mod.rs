//! The tables of connections, resolutions and listeners of a process, and the calls of its program.
//!
//! `incoming` handles messages of peers.

mod incoming;

use super::admission::{Admission, Waiting};
use super::connection::{
    Accept, CallError, Connect, Connection, ConnectionParameters, MraWhen, State,
};
use super::deadlines::Deadlines;
use super::listener::{ListenAt, ListenError, ListenerId, Listeners};
use super::outbox::{Counters, Outbox, Transmit};
use super::pacing::{Outcome, RequestPacing, Target};
use super::resolution::{Resolutions, Resolve, SidrAnswer};
use super::round_trip::RoundTrips;
use super::wire::private_data::{Info, PrivateData};
use super::wire::{RejectReason, ServiceId, disconnect, mra, rej, rtu};
use super::{CommId, Event, Ids};
use crate::ids::{Gid, Qpn};
use crate::time::Time;
use std::collections::{HashMap, HashSet};
use std::iter;
use std::time::Duration;

/// The most attempts to find a free identifier.
const MAX_ID_ATTEMPTS: usize = 64;

/// No free communication ID was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no free communication ID was found in {MAX_ID_ATTEMPTS} attempts: close some connections first"
)]
pub struct NoCommId;

/// A peer's communication ID.
///
/// The peer states its channel adapter itself. Its GID, which it cannot choose freely, is therefore
/// part of the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RemoteId {
    gid: Gid,
    ca_guid: u64,
    comm_id: u32,
}

/// A peer's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RemoteQp {
    gid: Gid,
    ca_guid: u64,
    qpn: Qpn,
}

/// The communication manager of a process.
#[derive(Debug)]
pub struct Manager<I> {
    ids: I,
    listeners: Listeners,
    /// Requests beyond the backlogs.
    admission: Admission<RemoteId>,
    /// The limits of unanswered REQs.
    pacing: RequestPacing,
    /// The round trips to peers, for REPs and DREQs.
    round_trips: RoundTrips,
    connections: HashMap<CommId, Connection>,
    /// Connections by the peer's ID, for the detection of duplicate REQs.
    remote_ids: HashMap<RemoteId, CommId>,
    /// Connections by the peer's queue pair, for the detection of stale connections.
    remote_qps: HashMap<RemoteQp, CommId>,
    deadlines: Deadlines,
    resolutions: Resolutions,
    out: Outbox,
    /// The time of the latest message, timeout or call.
    now: Time,
}

impl<I: Ids> Manager<I> {
    /// Returns a manager without connections or listeners.
    pub fn new(ids: I) -> Self {
        Manager {
            ids,
            listeners: Listeners::default(),
            admission: Admission::default(),
            pacing: RequestPacing::default(),
            round_trips: RoundTrips::default(),
            connections: HashMap::new(),
            remote_ids: HashMap::new(),
            remote_qps: HashMap::new(),
            deadlines: Deadlines::default(),
            resolutions: Resolutions::default(),
            out: Outbox::default(),
            now: Time(0),
        }
    }

    /// The counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// The number of connections and unanswered resolutions, abandoned ones included.
    pub fn open(&self) -> usize {
        self.connections.len() + self.resolutions.ids().count()
    }

    /// The number of cached replies to resolution requests.
    pub fn cached_replies(&self) -> usize {
        self.resolutions.cached()
    }

    /// The state of a connection; [`State::Idle`] when it does not exist.
    pub fn state(&self, id: CommId) -> State {
        self.connections
            .get(&id)
            .map_or(State::Idle, Connection::state)
    }

    /// The peer's communication ID, once it is known.
    pub fn remote_id(&self, id: CommId) -> Option<CommId> {
        let peer = self.connections.get(&id)?.peer()?;
        Some(CommId(peer.comm_id))
    }

    /// The parameters of a connection's queue pair.
    pub fn parameters(&self, id: CommId) -> Option<&ConnectionParameters> {
        self.connections.get(&id).map(Connection::parameters)
    }

    /// Returns the retransmission timeout that the measured round trips to a peer require (RFC
    /// 6298); `None` before the first measurement.
    pub fn retransmission_timeout(&self, peer: Gid) -> Option<Duration> {
        self.round_trips.of(peer).map(|trip| trip.timeout())
    }

    /// Listens for requests for `service` at the addresses `at`.
    ///
    /// While `backlog` requests are in the backlog ([`Manager::leave_backlog`]), further ones wait:
    /// their events follow as requests leave the backlog. Requests for a queue pair, and more than
    /// 16,384 of those that wait, are dropped; the peer retransmits them.
    ///
    /// # Errors
    /// [`ListenError::InUse`] when an address has a listener for the service.
    pub fn listen(
        &mut self,
        service: ServiceId,
        at: &[ListenAt],
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.listeners.add(service, at, backlog)
    }

    /// Whether `service` has a listener at a local address.
    pub fn listens(&self, service: ServiceId, address: Gid) -> bool {
        self.listeners.find(service, address).is_some()
    }

    /// Closes a listener. Requests already reported may still be answered; those that wait are
    /// dropped, and rejected when their peers retransmit them.
    pub fn close(&mut self, listener: ListenerId) {
        self.listeners.remove(listener);
        self.admission.close(listener);
    }

    /// Requests a connection: sends a REQ, or queues it while the peer has not answered enough of
    /// those sent before.
    ///
    /// # Errors
    /// [`NoCommId`] when no identifier is free.
    pub fn connect(&mut self, now: Time, request: &Connect) -> Result<CommId, NoCommId> {
        self.now = now;
        let id = self.new_id()?;
        let transaction = self.ids.transaction();
        let target = Target {
            remote: request.address.remote,
            service: request.service,
        };
        let place = self.pacing.add(target, id);
        let connection = Connection::active(id, transaction, request, (target, place), now);
        self.connections.insert(id, connection);
        self.update_tables(id);
        self.send_reqs(target);
        if (self.connections.get(&id)).is_some_and(Connection::is_unsent) {
            self.out.counters.paced += 1;
        }
        Ok(id)
    }

    /// Sends the REQs that the limit of a destination permits.
    fn send_reqs(&mut self, target: Target) {
        while let Some(id) = self.pacing.admit(target) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.send_req(self.now, &self.pacing, &mut self.out);
                self.deadlines.set(id, connection.deadline());
                // The last early retransmission no longer counts.
                if let Some((target, place, outcome)) = connection.take_outcome() {
                    self.pacing.finish(target, place, outcome, self.now);
                }
            }
        }
    }

    /// Makes the first retransmissions of a REP or DREQ follow the measured round trip to the peer.
    fn retransmit_early(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let is_sent = matches!(connection.state(), State::RepSent | State::DreqSent);
        let round_trip = self.round_trips.of(connection.address().remote);
        if let Some(round_trip) = round_trip.filter(|_| is_sent) {
            connection.shorten_timeout(self.now, round_trip.timeout());
            self.deadlines.set(id, connection.deadline());
        }
    }

    /// Measures the round trip of a REP or DREQ whose answer has been received.
    fn measure(&mut self, id: Option<CommId>, answered: State) {
        let connection = id.and_then(|id| self.connections.get(&id));
        if let Some(connection) = connection.filter(|connection| connection.state() == answered)
            && let Some(after) = connection.unanswered_for(self.now)
        {
            self.round_trips.add(connection.address().remote, after);
        }
    }

    /// Records that the peer has answered the REQ of a connection. `is_measurement` is false for an
    /// answer that takes less time than others do.
    fn req_answered(&mut self, id: CommId, is_measurement: bool) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(target) = connection.target().filter(|_| connection.awaits_rep()) else {
            return;
        };
        match connection.take_answer(self.now, is_measurement) {
            Some((target, place, outcome)) => {
                if let Outcome::Answered(Some(after)) = outcome {
                    self.round_trips.add(target.remote, after);
                }
                let sent_before = self.pacing.finish(target, place, outcome, self.now);
                for id in sent_before {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.shorten_timeout(self.now, self.pacing.timeout(target));
                        self.deadlines.set(id, connection.deadline());
                    }
                }
                self.send_reqs(target);
            }
            None => self.pacing.late_answer(target, self.now),
        }
    }

    /// Takes a request out of its listener's backlog, whether it is answered or not. Call
    /// [`Self::poll_transmit`] and [`Self::poll_event`] afterwards: another request may follow.
    pub fn leave_backlog(&mut self, now: Time, id: CommId) {
        self.now = now;
        let listener = match self.connections.get_mut(&id) {
            Some(connection) => connection.leave_backlog(),
            None => self.resolutions.leave_backlog(id),
        };
        if let Some(listener) = listener {
            self.release(listener);
        }
    }

    /// Accepts a request: sends a REP.
    ///
    /// # Errors
    /// [`CallError`] when there is no request to accept.
    pub fn accept(&mut self, now: Time, id: CommId, accept: &Accept) -> Result<(), CallError> {
        self.now = now;
        self.call(id, |connection, out| connection.accept(now, accept, out))?;
        self.retransmit_early(id);
        Ok(())
    }

    /// Rejects a request or a reply, or withdraws a message sent: sends a REJ.
    ///
    /// # Errors
    /// [`CallError`] when there is nothing to reject, or the connection is established.
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        info: Info,
        private_data: &PrivateData<{ rej::PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.now = now;
        self.call(id, |connection, out| {
            connection.reject(now, reason, info, *private_data, out)
        })
    }

    /// Declares the queue pair of an accepted connection ready: sends an RTU and establishes it.
    ///
    /// # Errors
    /// [`CallError`] when no REP has been received.
    pub fn ready(
        &mut self,
        id: CommId,
        private_data: &PrivateData<{ rtu::PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.call(id, |connection, out| connection.ready(*private_data, out))
    }

    /// Establishes a connection because a packet of it arrived before the RTU (12.9.7.2).
    ///
    /// # Errors
    /// [`CallError`] when no REP has been sent, or the connection is established.
    pub fn establish(&mut self, id: CommId) -> Result<(), CallError> {
        self.call(id, |connection, out| connection.establish(out))
    }

    /// Announces that the answer to a REQ or REP may take 4.096 us x 2^`service_timeout`: sends an
    /// MRA.
    ///
    /// # Errors
    /// [`CallError`] when there is nothing to answer.
    pub fn delay(
        &mut self,
        id: CommId,
        service_timeout: u8,
        private_data: &PrivateData<{ mra::PRIVATE_DATA }>,
        when: MraWhen,
    ) -> Result<(), CallError> {
        self.call(id, |connection, out| {
            connection.delay(service_timeout, *private_data, when, out)
        })
    }

    /// Disconnects, or answers the peer's DREQ.
    ///
    /// # Errors
    /// [`CallError`] when the connection is not established.
    pub fn disconnect(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &PrivateData<{ disconnect::DREQ_PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.now = now;
        let transaction = self.ids.transaction();
        self.call(id, |connection, out| {
            connection.disconnect(now, transaction, *private_data, out)
        })?;
        self.retransmit_early(id);
        Ok(())
    }

    /// Declares the peer of a connection lost, as the caller has detected by other means.
    ///
    /// Returns false when the connection is not established.
    pub fn peer_lost(&mut self, now: Time, id: CommId) -> bool {
        self.now = now;
        let transaction = self.ids.transaction();
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let lost = connection.peer_lost(now, transaction, &mut self.out);
        self.update_tables(id);
        lost
    }

    /// Requests the queue pair of a service: sends a SIDR_REQ.
    ///
    /// # Errors
    /// [`NoCommId`] when no identifier is free.
    pub fn resolve(&mut self, now: Time, request: &Resolve) -> Result<CommId, NoCommId> {
        let id = self.new_id()?;
        let transaction = self.ids.transaction();
        self.resolutions
            .resolve(id, transaction, request, now, &mut self.out);
        Ok(id)
    }

    /// Answers a resolution request. The identifier ceases to exist.
    ///
    /// # Errors
    /// [`CallError::Unknown`] when there is no such request.
    pub fn answer(&mut self, now: Time, id: CommId, answer: &SidrAnswer) -> Result<(), CallError> {
        self.now = now;
        if let Some(listener) = self.resolutions.answer(now, id, answer, &mut self.out)? {
            self.release(listener);
        }
        Ok(())
    }

    /// Detaches the program from `id`: no more events follow.
    ///
    /// A connection ends as its state requires; a request is rejected.
    pub fn abandon(&mut self, now: Time, id: CommId) {
        self.now = now;
        let transaction = self.ids.transaction();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.abandon(now, transaction, &mut self.out);
            self.update_tables(id);
            self.retransmit_early(id);
        } else if let Some(listener) = self.resolutions.abandon(now, id, &mut self.out) {
            self.release(listener);
        }
    }

    /// Abandons all connections and resolutions.
    pub fn abandon_all(&mut self, now: Time) {
        let mut ids: Vec<_> = self.connections.keys().copied().collect();
        ids.extend(self.resolutions.ids());
        for id in ids {
            self.abandon(now, id);
        }
    }

    /// Retransmits each unanswered DREQ before its timeout.
    ///
    /// For a process that is about to exit and cannot retransmit later. Returns whether there was
    /// one.
    pub fn retransmit_dreqs(&mut self) -> bool {
        let mut any = false;
        for connection in self.connections.values() {
            any |= connection.retransmit_dreq(&mut self.out);
        }
        any
    }

    /// Whether a DREQ is unanswered.
    pub fn awaits_drep(&self) -> bool {
        let mut connections = self.connections.values();
        connections.any(|connection| connection.state() == State::DreqSent)
    }

    /// Whether the identifier exists.
    pub fn exists(&self, id: CommId) -> bool {
        self.connections.contains_key(&id) || self.resolutions.is_open(id)
    }

    /// Whether [`Manager::poll_event`] would return an event.
    pub fn has_events(&self) -> bool {
        !self.out.events.is_empty()
    }

    /// Returns the next MAD to send. Call until it returns `None`.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.transmits.pop_front()
    }

    /// Returns the next event for the program. Call until it returns `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The time at which to call [`Manager::handle_timeout`]. It changes with every other call.
    pub fn deadline(&self) -> Time {
        self.deadlines.first().min(self.resolutions.deadline())
    }

    /// Handles all deadlines up to `now`. Call [`Self::poll_transmit`] and [`Self::poll_event`]
    /// afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        // Retransmitted at the end, with the limit that follows from all losses.
        let mut lost = HashSet::new();
        // Each once: the wait of a REQ that is lost now may end now as well, if this process was
        // stopped, but the REQ is retransmitted first.
        let due: Vec<_> = iter::from_fn(|| self.deadlines.pop(now)).collect();
        for id in due {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            if let Some(target) = connection.waits_for() {
                let answered = self.pacing.answered(target);
                connection.on_wait_expired(now, answered, &mut self.out);
            } else if let Some((target, place)) = connection.take_lost() {
                self.pacing.lost(target, place, id, now);
                lost.insert(target);
            } else {
                connection.on_timeout(now, &mut self.out);
            }
            self.update_tables(id);
        }
        for target in lost {
            self.send_reqs(target);
        }
        self.resolutions.handle_timeout(now, &mut self.out);
    }

    /// Executes a call of the program on a connection.
    fn call(
        &mut self,
        id: CommId,
        make: impl FnOnce(&mut Connection, &mut Outbox) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let connection = self
            .connections
            .get_mut(&id)
            .ok_or(CallError::Unknown(id))?;
        let made = make(connection, &mut self.out);
        self.update_tables(id);
        made
    }

    /// Releases an entry of a backlog, and reports requests that wait for it.
    fn release(&mut self, listener: ListenerId) {
        self.listeners.release(listener);
        while self.listeners.has_room(listener)
            && let Some(waiting) = self.admission.next(listener, self.now)
        {
            self.admit(self.now, &waiting);
        }
    }

    /// Updates the tables after a change of a connection.
    fn update_tables(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let listener = connection.take_listener();
        let withdrawn = connection.take_place();
        let outcome = connection.take_outcome();
        self.update_tables_of(id);
        if let Some(listener) = listener {
            self.release(listener);
        }
        if let Some((target, place)) = withdrawn {
            self.pacing.remove(target, place);
        }
        if let Some((target, place, outcome)) = outcome {
            self.pacing.finish(target, place, outcome, self.now);
            self.send_reqs(target);
        }
    }

    fn update_tables_of(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let state = connection.state();
        let gid = connection.address().remote;
        let peer = connection.peer();
        if matches!(state, State::TimeWait | State::Idle)
            && let Some(peer) = peer
        {
            // The peer's queue pair is free here; whether it may be reused is the peer's decision.
            let qp = qp_of(gid, peer.ca_guid, peer.qpn);
            if self.remote_qps.get(&qp) == Some(&id) {
                self.remote_qps.remove(&qp);
            }
        }
        if state != State::Idle {
            self.deadlines.set(id, connection.deadline());
            return;
        }
        self.deadlines.set(id, Time::NEVER);
        self.connections.remove(&id);
        if let Some(peer) = peer {
            self.remote_ids.remove(&RemoteId {
                gid,
                ca_guid: peer.ca_guid,
                comm_id: peer.comm_id,
            });
        }
    }

    /// Returns a free communication ID.
    fn new_id(&mut self) -> Result<CommId, NoCommId> {
        for _ in 0..MAX_ID_ATTEMPTS {
            let id = CommId(self.ids.comm_id());
            let free = !self.connections.contains_key(&id) && !self.resolutions.contains(id);
            if id.0 != 0 && free {
                return Ok(id);
            }
        }
        Err(NoCommId)
    }

    /// Whether no table has an entry and no output is queued.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
            && self.remote_ids.is_empty()
            && self.remote_qps.is_empty()
            && self.deadlines.is_empty()
            && self.resolutions.is_empty()
            && self.listeners.waiting() == 0
            && self.admission.is_empty()
            && self.pacing.is_idle()
            && self.out.transmits.is_empty()
            && self.out.events.is_empty()
    }
}

fn qp_of(gid: Gid, ca_guid: u64, qpn: Qpn) -> RemoteQp {
    RemoteQp { gid, ca_guid, qpn }
}
