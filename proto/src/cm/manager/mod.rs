//! The tables: all connections, resolutions and listeners of a process, and the calls of its program.
//! What its peers send is in `incoming`.

mod incoming;

use super::connection::{
    Accept, CallError, Connect, Connection, ConnectionParameters, MraWhen, State,
};
use super::deadlines::Deadlines;
use super::listener::{ListenAt, ListenError, ListenerId, Listeners};
use super::outbox::{Counters, Outbox, Transmit};
use super::resolution::{Resolutions, Resolve, SidrAnswer};
use super::wire::private_data::{Info, PrivateData};
use super::wire::{RejectReason, ServiceId, disconnect, mra, rej, rtu};
use super::{CommId, Event, Ids};
use crate::ids::{Gid, Qpn};
use crate::time::Time;
use std::collections::HashMap;

/// How often an identifier is asked for before there is none.
const TRIES: usize = 64;

/// There is no communication ID that is not in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{TRIES} communication IDs were in use already: end some communication first")]
pub struct NoCommId;

/// A peer's communication ID. Which adapter it belongs to, the peer says itself; so its GID, which it
/// cannot choose freely, is part of the name.
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

/// All communication of a process.
#[derive(Debug)]
pub struct Manager<I> {
    ids: I,
    listeners: Listeners,
    connections: HashMap<CommId, Connection>,
    /// Connections by the peer's ID, as long as they exist: how a REQ is known to have come before.
    remote_ids: HashMap<RemoteId, CommId>,
    /// Connections by the peer's queue pair, which can have one at a time: how one is known to be
    /// stale.
    remote_qps: HashMap<RemoteQp, CommId>,
    deadlines: Deadlines,
    resolutions: Resolutions,
    out: Outbox,
}

impl<I: Ids> Manager<I> {
    /// A manager of nothing.
    pub fn new(ids: I) -> Self {
        Manager {
            ids,
            listeners: Listeners::default(),
            connections: HashMap::new(),
            remote_ids: HashMap::new(),
            remote_qps: HashMap::new(),
            deadlines: Deadlines::default(),
            resolutions: Resolutions::default(),
            out: Outbox::default(),
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// How many connections and resolutions there are, those included that the program has forgotten
    /// and that have not come to their end.
    pub fn open(&self) -> usize {
        self.connections.len() + self.resolutions.ids().count()
    }

    /// How many answers to resolutions are kept for requests that are repeated.
    pub fn kept_answers(&self) -> usize {
        self.resolutions.kept()
    }

    /// The state of a connection; [`State::Idle`] when there is none.
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

    /// What the queue pair of a connection needs to know.
    pub fn parameters(&self, id: CommId) -> Option<&ConnectionParameters> {
        self.connections.get(&id).map(Connection::parameters)
    }

    /// Listens for requests for `service`. While `backlog` of them wait for the program to take them up
    /// ([`Manager::take_up`]) or to answer them, more are dropped; the peer repeats them.
    ///
    /// # Errors
    /// When somebody listens there.
    pub fn listen(
        &mut self,
        service: ServiceId,
        at: &[ListenAt],
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.listeners.add(service, at, backlog)
    }

    /// Whether somebody listens for `service` at an address of ours.
    pub fn listens(&self, service: ServiceId, address: Gid) -> bool {
        self.listeners.find(service, address).is_some()
    }

    /// Listens no more. What has been asked already may still be answered.
    pub fn close(&mut self, listener: ListenerId) {
        self.listeners.remove(listener);
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// When there is no identifier for it.
    pub fn connect(&mut self, now: Time, wanted: &Connect) -> Result<CommId, NoCommId> {
        let id = self.new_id()?;
        let transaction = self.ids.transaction();
        let connection = Connection::active(id, transaction, wanted, now, &mut self.out);
        self.connections.insert(id, connection);
        self.settle(id);
        Ok(id)
    }

    /// The program takes a request up: from now on it does not count against the backlog, answered or not.
    pub fn take_up(&mut self, id: CommId) {
        let listener = match self.connections.get_mut(&id) {
            Some(connection) => connection.take_up(),
            None => self.resolutions.take_up(id),
        };
        if let Some(listener) = listener {
            self.listeners.release(listener);
        }
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// When there is none.
    pub fn accept(&mut self, now: Time, id: CommId, accept: &Accept) -> Result<(), CallError> {
        self.call(id, |connection, out| connection.accept(now, accept, out))
    }

    /// Rejects a request, or a reply; or takes back one of ours.
    ///
    /// # Errors
    /// When there is none, or it is too late.
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        info: Info,
        private_data: &PrivateData<{ rej::PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.call(id, |connection, out| {
            connection.reject(now, reason, info, *private_data, out)
        })
    }

    /// Our queue pair is ready for the connection that the peer accepted, which is established
    /// thereby.
    ///
    /// # Errors
    /// When the peer has not accepted.
    pub fn ready(
        &mut self,
        id: CommId,
        private_data: &PrivateData<{ rtu::PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        self.call(id, |connection, out| connection.ready(*private_data, out))
    }

    /// A packet of the connection that we accepted has come: it is established, though the peer has
    /// not said so (12.9.7.2).
    ///
    /// # Errors
    /// When we have not accepted, or it is established.
    pub fn establish(&mut self, id: CommId) -> Result<(), CallError> {
        self.call(id, |connection, out| connection.establish(out))
    }

    /// Tells the peer that the answer to its REQ or REP may take 4.096 us x 2^`service_timeout`.
    ///
    /// # Errors
    /// When there is nothing to answer.
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

    /// Ends a connection, or agrees that the peer ends it.
    ///
    /// # Errors
    /// When it is not established.
    pub fn disconnect(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &PrivateData<{ disconnect::DREQ_PRIVATE_DATA }>,
    ) -> Result<(), CallError> {
        let transaction = self.ids.transaction();
        self.call(id, |connection, out| {
            connection.disconnect(now, transaction, *private_data, out)
        })
    }

    /// The peer of a connection is gone, as the caller knows: no message of it will tell. False when the
    /// connection is not established any more.
    pub fn lose(&mut self, now: Time, id: CommId) -> bool {
        let transaction = self.ids.transaction();
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let lost = connection.lose(now, transaction, &mut self.out);
        self.settle(id);
        lost
    }

    /// Asks for the queue pair of a service.
    ///
    /// # Errors
    /// When there is no identifier for it.
    pub fn resolve(&mut self, now: Time, wanted: &Resolve) -> Result<CommId, NoCommId> {
        let id = self.new_id()?;
        let transaction = self.ids.transaction();
        self.resolutions
            .resolve(id, transaction, wanted, now, &mut self.out);
        Ok(id)
    }

    /// Answers who asked for a queue pair. The identifier is no more.
    ///
    /// # Errors
    /// When nobody asked.
    pub fn answer(&mut self, now: Time, id: CommId, answer: &SidrAnswer) -> Result<(), CallError> {
        if let Some(listener) = self.resolutions.answer(now, id, answer, &mut self.out)? {
            self.listeners.release(listener);
        }
        Ok(())
    }

    /// The program has no more to do with `id`: it gets no more events of it. A connection is brought
    /// to its end in the manner of its state; a request is rejected.
    pub fn abandon(&mut self, now: Time, id: CommId) {
        let transaction = self.ids.transaction();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.abandon(now, transaction, &mut self.out);
            self.settle(id);
        } else if let Some(listener) = self.resolutions.abandon(now, id, &mut self.out) {
            self.listeners.release(listener);
        }
    }

    /// The program has no more to do with anything.
    pub fn abandon_all(&mut self, now: Time) {
        let mut ids: Vec<_> = self.connections.keys().copied().collect();
        ids.extend(self.resolutions.ids());
        for id in ids {
            self.abandon(now, id);
        }
    }

    /// Sends each DREQ that has no answer yet again, before its time: for a process that ends, and will
    /// not be there to repeat it. False when there is none.
    pub fn repeat_dreqs(&mut self) -> bool {
        let mut any = false;
        for connection in self.connections.values() {
            any |= connection.repeat_dreq(&mut self.out);
        }
        any
    }

    /// Whether a DREQ has no answer yet.
    pub fn awaits_drep(&self) -> bool {
        let mut connections = self.connections.values();
        connections.any(|connection| connection.state() == State::DreqSent)
    }

    /// Whether there is such an identifier.
    pub fn exists(&self, id: CommId) -> bool {
        self.connections.contains_key(&id) || self.resolutions.is_open(id)
    }

    /// Whether [`Manager::poll_event`] has something.
    pub fn has_events(&self) -> bool {
        !self.out.events.is_empty()
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.transmits.pop_front()
    }

    /// The next event for the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// When [`Manager::handle_timeout`] should be called.
    pub fn deadline(&self) -> Time {
        self.deadlines.first().min(self.resolutions.deadline())
    }

    /// Looks at the clock.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(id) = self.deadlines.pop(now) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.on_timeout(now, &mut self.out);
                self.settle(id);
            }
        }
        self.resolutions.handle_timeout(now, &mut self.out);
    }

    /// Makes a call of the program.
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
        self.settle(id);
        made
    }

    /// Brings the tables up to date with what became of a connection.
    fn settle(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Some(listener) = connection.take_listener() {
            self.listeners.release(listener);
        }
        let state = connection.state();
        let gid = connection.address().remote;
        let peer = connection.peer();
        if matches!(state, State::TimeWait | State::Idle)
            && let Some(peer) = peer
        {
            // The peer's queue pair is free: whether it may be used is for the peer to know.
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

    /// A communication ID that is not in use.
    fn new_id(&mut self) -> Result<CommId, NoCommId> {
        for _ in 0..TRIES {
            let id = CommId(self.ids.comm_id());
            let free = !self.connections.contains_key(&id) && !self.resolutions.contains(id);
            if id.0 != 0 && free {
                return Ok(id);
            }
        }
        Err(NoCommId)
    }

    /// Whether nothing is left of anything: no table has an entry, nothing waits.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
            && self.remote_ids.is_empty()
            && self.remote_qps.is_empty()
            && self.deadlines.is_empty()
            && self.resolutions.is_empty()
            && self.listeners.waiting() == 0
            && self.out.transmits.is_empty()
            && self.out.events.is_empty()
    }
}

fn qp_of(gid: Gid, ca_guid: u64, qpn: Qpn) -> RemoteQp {
    RemoteQp { gid, ca_guid, qpn }
}
