//! The tables: which connection a message is for, and what to say when it is for none.

use super::connection::{
    Accept, CallError, Connect, Connection, ConnectionParameters, MraWhen, State, qpn_of, refusal,
};
use super::deadlines::Deadlines;
use super::listener::{ListenAt, ListenError, ListenerId, Listeners};
use super::outbox::{Counters, Outbox, Transmit};
use super::resolution::{Resolutions, Resolve, SidrAnswer, reply};
use super::wire::private_data::{Info, PrivateData};
use super::wire::{
    Answered, ApStatus, Drep, Dreq, Lap, Message, Mra, Rej, RejectReason, Rep, Req, ServiceId,
    SidrReq, SidrStatus, Transport, disconnect, mra, rej, rtu,
};
use super::{Address, CommId, Event, Ids};
use crate::ids::{Gid, Qpn};
use crate::mtu::Mtu;
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

    /// What the queue pair of a connection needs to know.
    pub fn parameters(&self, id: CommId) -> Option<&ConnectionParameters> {
        self.connections.get(&id).map(Connection::parameters)
    }

    /// Listens for requests for `service`. While `backlog` of them wait for the program's answer, more are dropped;
    /// the peer repeats them.
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
        let listener = self.resolutions.answer(now, id, answer, &mut self.out)?;
        self.listeners.release(listener);
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

    /// Handles what came to queue pair 1 with the right queue key: a MAD, or not.
    pub fn handle_mad(&mut self, now: Time, address: Address, bytes: &[u8]) {
        self.out.counters.received += 1;
        let (transaction, message) = match Message::parse(bytes) {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::debug!(%error, "dropped what is no message of communication management");
                self.out.counters.malformed += 1;
                return;
            }
        };
        tracing::trace!(?address, ?message, "received");
        let from = Source {
            address,
            transaction,
        };
        match message {
            Message::Req(req) => self.on_req(now, from, &req),
            Message::Mra(mra) => self.on_mra(now, from, &mra),
            Message::Rej(rej) => self.on_rej(now, from, &rej),
            Message::Rep(rep) => self.on_rep(now, from, &rep),
            Message::Rtu(rtu) => {
                let to = self.find(&from, rtu.remote_comm_id, Some(rtu.local_comm_id));
                self.deliver(to, |connection, out| connection.on_rtu(&rtu, out));
            }
            Message::Dreq(dreq) => self.on_dreq(now, from, &dreq),
            Message::Drep(drep) => {
                let to = self.find(&from, drep.remote_comm_id, Some(drep.local_comm_id));
                self.deliver(to, |connection, out| connection.on_drep(now, &drep, out));
            }
            Message::SidrReq(req) => self.on_sidr_req(from, &req),
            Message::SidrRep(rep) => self.resolutions.on_rep(&address, &rep, &mut self.out),
            Message::Lap(lap) => self.on_lap(from, &lap),
            // We send no LAP.
            Message::Apr(_) => self.out.counters.unmatched += 1,
        }
    }

    fn on_req(&mut self, now: Time, from: Source, req: &Req) {
        let gid = from.address.remote;
        let remote_id = RemoteId {
            gid,
            ca_guid: req.ca_guid,
            comm_id: req.local_comm_id,
        };
        if let Some(&id) = self.remote_ids.get(&remote_id) {
            self.deliver(Some(id), Connection::on_duplicate_req);
            return;
        }
        if let Some((reason, info)) = objection(&from.address, req) {
            self.refuse_req(from, req, reason, info);
            return;
        }
        if let Some(id) = self.peer_has(gid, req.ca_guid, req.qpn) {
            self.refuse_req(from, req, RejectReason::STALE_CONNECTION, Info::default());
            self.end_stale(now, id);
            return;
        }
        let Some(listener) = self.listeners.find(req.service, from.address.local) else {
            self.refuse_req(from, req, RejectReason::INVALID_SERVICE_ID, Info::default());
            return;
        };
        if !self.listeners.take(listener) {
            self.out.counters.over_backlog += 1;
            return;
        }
        let made = self.new_id().ok().and_then(|id| {
            Connection::passive(id, listener, from.address, from.transaction, req)
                .map(|connection| (id, connection))
        });
        let Some((id, connection)) = made else {
            self.listeners.release(listener);
            self.refuse_req(from, req, RejectReason::NO_RESOURCES, Info::default());
            return;
        };
        self.remote_ids.insert(remote_id, id);
        self.remote_qps.insert(qp_of(gid, req.ca_guid, req.qpn), id);
        self.connections.insert(id, connection);
        self.out.events.push_back(Event::Request {
            listener,
            id,
            address: from.address,
            req: Box::new(*req),
        });
        self.settle(id);
    }

    fn on_rep(&mut self, now: Time, from: Source, rep: &Rep) {
        let id = CommId(rep.remote_comm_id);
        let known = self.connections.get(&id);
        let Some(connection) = known.filter(|c| c.is_from_peer(&from.address)) else {
            self.refuse_rep(from, rep, RejectReason::INVALID_COMM_ID);
            return;
        };
        match connection.peer() {
            Some(peer) if peer.comm_id == rep.local_comm_id => {
                self.deliver(Some(id), Connection::on_duplicate_rep);
                return;
            }
            None if connection.awaits_rep() => {}
            _ => {
                self.out.counters.unmatched += 1;
                return;
            }
        }
        let gid = from.address.remote;
        let remote_id = RemoteId {
            gid,
            ca_guid: rep.ca_guid,
            comm_id: rep.local_comm_id,
        };
        let qpn = qpn_of(rep, connection.parameters().transport);
        if self.remote_ids.contains_key(&remote_id) {
            self.out.counters.unmatched += 1;
            return;
        }
        if let Some(stale) = self.peer_has(gid, rep.ca_guid, qpn) {
            self.refuse_rep(from, rep, RejectReason::STALE_CONNECTION);
            self.end_stale(now, stale);
            return;
        }
        self.remote_ids.insert(remote_id, id);
        self.remote_qps.insert(qp_of(gid, rep.ca_guid, qpn), id);
        self.deliver(Some(id), |connection, out| connection.on_rep(rep, out));
    }

    fn on_mra(&mut self, now: Time, from: Source, mra: &Mra) {
        // Who answers a REQ has an ID that we do not know yet.
        let local = (mra.answered != Answered::Req).then_some(mra.local_comm_id);
        let to = self.find(&from, mra.remote_comm_id, local);
        self.deliver(to, |connection, out| connection.on_mra(now, mra, out));
    }

    fn on_rej(&mut self, now: Time, from: Source, rej: &Rej) {
        let to = if rej.reason == RejectReason::TIMEOUT {
            // The peer may not know our ID, but says who it is (12.6.7.2).
            rej.info.first_chunk().and_then(|guid| {
                let id = RemoteId {
                    gid: from.address.remote,
                    ca_guid: u64::from_be_bytes(*guid),
                    comm_id: rej.local_comm_id,
                };
                self.remote_ids.get(&id).copied()
            })
        } else {
            let local = (rej.answered != Answered::Req).then_some(rej.local_comm_id);
            self.find(&from, rej.remote_comm_id, local)
        };
        self.deliver(to, |connection, out| connection.on_rej(now, rej, out));
    }

    fn on_dreq(&mut self, now: Time, from: Source, dreq: &Dreq) {
        let transaction = from.transaction;
        match self.find(&from, dreq.remote_comm_id, Some(dreq.local_comm_id)) {
            Some(id) => self.deliver(Some(id), |connection, out| {
                connection.on_dreq(now, transaction, dreq, out);
            }),
            // What does not exist is ended, and the peer may know it (12.9.8.3).
            None => {
                self.out.counters.unmatched += 1;
                let drep = Message::Drep(Drep {
                    local_comm_id: dreq.remote_comm_id,
                    remote_comm_id: dreq.local_comm_id,
                    private_data: PrivateData::default(),
                });
                self.out.send(from.address, transaction, &drep);
            }
        }
    }

    fn on_lap(&mut self, from: Source, lap: &Lap) {
        let Source {
            address,
            transaction,
        } = from;
        match self.find(&from, lap.remote_comm_id, Some(lap.local_comm_id)) {
            Some(id) => self.deliver(Some(id), |connection, out| {
                connection.on_lap(address, transaction, lap, out);
            }),
            None => {
                self.out.counters.unmatched += 1;
                let apr = refusal(lap, ApStatus::INVALID_COMM_ID);
                self.out.send(address, transaction, &apr);
            }
        }
    }

    fn on_sidr_req(&mut self, from: Source, req: &SidrReq) {
        let Source {
            address,
            transaction,
        } = from;
        if self.resolutions.is_duplicate(&address, req, &mut self.out) {
            return;
        }
        let Some(listener) = self.listeners.find(req.service, address.local) else {
            self.out.counters.refused += 1;
            let refusal = SidrAnswer::refusal(SidrStatus::UNSUPPORTED);
            let rep = reply(req.request_id, req.service, &refusal);
            self.out.send(address, transaction, &rep);
            return;
        };
        if !self.listeners.take(listener) {
            self.out.counters.over_backlog += 1;
            return;
        }
        match self.new_id() {
            Ok(id) => {
                self.resolutions
                    .on_req(id, listener, address, transaction, req, &mut self.out);
            }
            Err(NoCommId) => self.listeners.release(listener),
        }
    }

    /// Who a message is for: our ID `local`, with the peer's ID `remote`, or with none yet.
    fn find(&self, from: &Source, local: u32, remote: Option<u32>) -> Option<CommId> {
        let id = CommId(local);
        let connection = self.connections.get(&id)?;
        let peer = connection.peer().map(|peer| peer.comm_id);
        (peer == remote && connection.is_from_peer(&from.address)).then_some(id)
    }

    /// Gives a message to who it is for.
    fn deliver(&mut self, to: Option<CommId>, give: impl FnOnce(&mut Connection, &mut Outbox)) {
        let found = to.and_then(|id| Some((id, self.connections.get_mut(&id)?)));
        match found {
            Some((id, connection)) => {
                give(connection, &mut self.out);
                self.settle(id);
            }
            None => self.out.counters.unmatched += 1,
        }
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

    /// The connection of a peer's queue pair.
    fn peer_has(&self, gid: Gid, ca_guid: u64, qpn: Qpn) -> Option<CommId> {
        self.remote_qps.get(&qp_of(gid, ca_guid, qpn)).copied()
    }

    /// The peer uses its queue pair for another connection: this one is over, and its own program
    /// should hear of it (12.9.8.3.1).
    fn end_stale(&mut self, now: Time, id: CommId) {
        if self.state(id) == State::Established {
            // That state takes it.
            let _ = self.disconnect(now, id, &PrivateData::default());
        }
    }

    fn refuse_req(&mut self, from: Source, req: &Req, reason: RejectReason, info: Info) {
        self.refuse(from, Answered::Req, (0, req.local_comm_id), reason, info);
    }

    fn refuse_rep(&mut self, from: Source, rep: &Rep, reason: RejectReason) {
        let ids = (rep.remote_comm_id, rep.local_comm_id);
        self.refuse(from, Answered::Rep, ids, reason, Info::default());
    }

    /// Rejects a message for which there is no connection.
    fn refuse(
        &mut self,
        from: Source,
        answered: Answered,
        (local_comm_id, remote_comm_id): (u32, u32),
        reason: RejectReason,
        info: Info,
    ) {
        self.out.counters.refused += 1;
        let rej = Message::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            answered,
            reason,
            info,
            private_data: PrivateData::default(),
        });
        self.out.send(from.address, from.transaction, &rej);
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

/// Who a message is from.
#[derive(Clone, Copy, Debug)]
struct Source {
    address: Address,
    transaction: u64,
}

fn qp_of(gid: Gid, ca_guid: u64, qpn: Qpn) -> RemoteQp {
    RemoteQp { gid, ca_guid, qpn }
}

/// What is wrong with a request, and what would have been right (12.6.7.2).
fn objection(address: &Address, req: &Req) -> Option<(RejectReason, Info)> {
    if matches!(req.transport, Transport::Rd | Transport::Extended(_)) {
        return Some((RejectReason::INVALID_TRANSPORT, Info::default()));
    }
    if req.mtu().is_none() {
        let largest = Info::from([Mtu::B4096 as u8]);
        return Some((RejectReason::INVALID_PATH_MTU, largest));
    }
    if req.primary.remote_gid != address.local {
        return Some((RejectReason::PRIMARY_GID, Info::from(address.local.0)));
    }
    None
}
