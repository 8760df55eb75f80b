//! Messages of peers: finding the connection of a message, and answers to messages without one.

use super::{Manager, NoCommId, RemoteId, Waiting, qp_of};
use crate::cm::connection::{Connection, State, qpn_of, refusal};
use crate::cm::outbox::Outbox;
use crate::cm::resolution::{SidrAnswer, reply};
use crate::cm::wire::private_data::{Info, PrivateData};
use crate::cm::wire::{
    Answered, ApStatus, Drep, Dreq, Lap, Message, Mra, Rej, RejectReason, Rep, Req, SidrReq,
    SidrStatus, Transport, requested_address,
};
use crate::cm::{Address, CommId, Event, Ids};
use crate::ids::{Gid, Qpn};
use crate::mtu::Mtu;
use crate::time::Time;

/// The source of a message.
#[derive(Clone, Copy, Debug)]
struct Source {
    address: Address,
    transaction: u64,
}

impl<I: Ids> Manager<I> {
    /// Handles a datagram that arrived at queue pair 1 with the queue key of the GSI.
    ///
    /// The bytes need not be a valid MAD. Call [`Self::poll_transmit`] and [`Self::poll_event`]
    /// until they return `None`, and query [`Self::deadline`] afterwards.
    pub fn handle_mad(&mut self, now: Time, address: Address, bytes: &[u8]) {
        self.now = now;
        self.out.counters.received += 1;
        let (transaction, message) = match Message::parse(bytes) {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::debug!(%error, "dropped a datagram that is not a valid CM message");
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
                self.measure(to, State::RepSent);
                self.deliver(to, |connection, out| connection.on_rtu(&rtu, out));
            }
            Message::Dreq(dreq) => self.on_dreq(now, from, &dreq),
            Message::Drep(drep) => {
                let to = self.find(&from, drep.remote_comm_id, Some(drep.local_comm_id));
                self.measure(to, State::DreqSent);
                self.deliver(to, |connection, out| connection.on_drep(now, &drep, out));
            }
            Message::SidrReq(req) => self.on_sidr_req(from, &req),
            Message::SidrRep(rep) => self.resolutions.on_rep(&address, &rep, &mut self.out),
            Message::Lap(lap) => self.on_lap(from, &lap),
            // LAPs are never sent.
            Message::Apr(_) => self.out.counters.unmatched += 1,
        }
    }

    /// Handles a request that has waited for room in the backlog, which there is now.
    pub(super) fn admit(&mut self, now: Time, waiting: &Waiting) {
        let from = Source {
            address: waiting.address,
            transaction: waiting.transaction,
        };
        self.on_req(now, from, &waiting.req);
    }

    fn on_req(&mut self, now: Time, from: Source, req: &Req) {
        let gid = from.address.remote;
        let remote_id = RemoteId {
            gid,
            ca_guid: req.ca_guid,
            comm_id: req.local_comm_id,
        };
        if let Some(&id) = self.remote_ids.get(&remote_id) {
            self.deliver(Some(id), |connection, out| {
                connection.on_duplicate_req(now, out);
            });
            return;
        }
        if (self.admission).extend(&remote_id, from.transaction, now) {
            self.out.counters.duplicates += 1;
            return;
        }
        if let Some((reason, info)) = check_req(&from.address, req) {
            self.refuse_req(from, req, reason, info);
            return;
        }
        if let Some(id) = self.connection_of_qp(gid, req.ca_guid, req.qpn) {
            self.refuse_req(from, req, RejectReason::STALE_CONNECTION, Info::default());
            self.disconnect_stale(now, id);
            return;
        }
        let requested = requested_address(from.address.local, gid, &req.private_data);
        let Some(listener) = self.listeners.find(req.service, requested) else {
            self.refuse_req(from, req, RejectReason::INVALID_SERVICE_ID, Info::default());
            return;
        };
        if !self.listeners.take(listener) {
            let waiting = Waiting::new(from.address, from.transaction, req, now);
            let counters = &mut self.out.counters;
            match self.admission.add(listener, remote_id, waiting, now) {
                true => counters.awaiting_backlog += 1,
                false => counters.over_backlog += 1,
            }
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
        self.update_tables(id);
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
        self.req_answered(id, true);
        if self.remote_ids.contains_key(&remote_id) {
            self.out.counters.unmatched += 1;
            return;
        }
        if let Some(stale) = self.connection_of_qp(gid, rep.ca_guid, qpn) {
            self.refuse_rep(from, rep, RejectReason::STALE_CONNECTION);
            let mut waited = None;
            self.deliver(Some(id), |connection, _| {
                waited = connection.on_rep_refused(now);
            });
            if let Some((target, place)) = waited {
                self.pacing.remove(target, place);
            }
            self.disconnect_stale(now, stale);
            return;
        }
        self.remote_ids.insert(remote_id, id);
        self.remote_qps.insert(qp_of(gid, rep.ca_guid, qpn), id);
        self.deliver(Some(id), |connection, out| connection.on_rep(rep, out));
    }

    fn on_mra(&mut self, now: Time, from: Source, mra: &Mra) {
        // An MRA for a REQ comes from an ID that is not yet known here.
        let local = (mra.answered != Answered::Req).then_some(mra.local_comm_id);
        let to = self.find(&from, mra.remote_comm_id, local);
        if let (Some(id), Answered::Req) = (to, mra.answered) {
            self.req_answered(id, true);
        }
        self.deliver(to, |connection, out| connection.on_mra(now, mra, out));
    }

    fn on_rej(&mut self, now: Time, from: Source, rej: &Rej) {
        let to = if rej.reason == RejectReason::TIMEOUT {
            // The peer may not know the local ID; it then identifies itself by its GUID (12.6.7.2).
            let id = rej.info.first_chunk().map(|guid| RemoteId {
                gid: from.address.remote,
                ca_guid: u64::from_be_bytes(*guid),
                comm_id: rej.local_comm_id,
            });
            if id.is_some_and(|id| self.admission.withdraw(&id)) {
                return;
            }
            id.and_then(|id| self.remote_ids.get(&id).copied())
        } else {
            let local = (rej.answered != Answered::Req).then_some(rej.local_comm_id);
            self.find(&from, rej.remote_comm_id, local)
        };
        if let Some(id) = to {
            // A REJ takes less time than a REP, for which the program creates a queue pair.
            self.req_answered(id, false);
        }
        self.deliver(to, |connection, out| connection.on_rej(now, rej, out));
    }

    fn on_dreq(&mut self, now: Time, from: Source, dreq: &Dreq) {
        let transaction = from.transaction;
        match self.find(&from, dreq.remote_comm_id, Some(dreq.local_comm_id)) {
            Some(id) => self.deliver(Some(id), |connection, out| {
                connection.on_dreq(now, transaction, dreq, out);
            }),
            // A DREQ for an unknown connection is answered with a DREP (12.9.8.3).
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
        let requested = requested_address(address.local, address.remote, &req.private_data);
        let Some(listener) = self.listeners.find(req.service, requested) else {
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

    /// Finds the connection of a message by the local ID, and checks the remote ID, or its absence.
    fn find(&self, from: &Source, local: u32, remote: Option<u32>) -> Option<CommId> {
        let id = CommId(local);
        let connection = self.connections.get(&id)?;
        let peer = connection.peer().map(|peer| peer.comm_id);
        (peer == remote && connection.is_from_peer(&from.address)).then_some(id)
    }

    /// Passes a message to its connection; counts it as unmatched if there is none.
    fn deliver(&mut self, to: Option<CommId>, give: impl FnOnce(&mut Connection, &mut Outbox)) {
        let found = to.and_then(|id| Some((id, self.connections.get_mut(&id)?)));
        match found {
            Some((id, connection)) => {
                give(connection, &mut self.out);
                self.update_tables(id);
            }
            None => self.out.counters.unmatched += 1,
        }
    }

    /// Returns the connection of a peer's queue pair.
    fn connection_of_qp(&self, gid: Gid, ca_guid: u64, qpn: Qpn) -> Option<CommId> {
        self.remote_qps.get(&qp_of(gid, ca_guid, qpn)).copied()
    }

    /// Disconnects a connection whose peer uses its queue pair for another one (12.9.8.3.1).
    fn disconnect_stale(&mut self, now: Time, id: CommId) {
        if self.state(id) == State::Established {
            // Infallible: the state is Established.
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

    /// Rejects a message that has no connection.
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
}

/// Returns the reason to reject a REQ, and the valid value for the REJ (12.6.7.2).
fn check_req(address: &Address, req: &Req) -> Option<(RejectReason, Info)> {
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
