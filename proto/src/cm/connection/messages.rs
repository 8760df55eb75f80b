//! Messages of the peer to a connection.

use super::super::wire::{
    Answered, ApStatus, Apr, Drep, Dreq, Info, Lap, Message, Mra, PrivateData, Rej, RejectReason,
    Rep, Rtu, Transport,
};
use super::super::{Address, Event, timing};
use super::{Connection, Outbox, Peer, State};
use crate::ids::Qpn;
use crate::time::Time;

/// Returns the queue pair that a REP names; over XRC it is in another field.
pub(in super::super) fn qpn_of(rep: &Rep, transport: Transport) -> Qpn {
    match transport {
        Transport::Xrc => Qpn::new(rep.eecn),
        _ => rep.qpn,
    }
}

impl Connection {
    /// Whether the first REP is expected.
    pub fn awaits_rep(&self) -> bool {
        matches!(self.state, State::ReqSent | State::MraReqReceived) && !self.is_unsent()
    }

    /// Handles the expected REP.
    pub fn on_rep(&mut self, rep: &Rep, out: &mut Outbox) {
        let qpn = qpn_of(rep, self.parameters.transport);
        self.peer = Some(Peer {
            comm_id: rep.local_comm_id,
            ca_guid: rep.ca_guid,
            qpn,
        });
        let parameters = &mut self.parameters;
        parameters.remote_qpn = Some(qpn);
        parameters.sq_psn = rep.starting_psn;
        parameters.initiator_depth = rep.responder_resources;
        parameters.responder_resources = rep.initiator_depth;
        parameters.rnr_retry_count = rep.rnr_retry_count;
        parameters.ack_timeout = timing::ack_timeout(rep.target_ack_delay, self.packet_life_time);
        self.enter(State::RepReceived);
        let rep = Box::new(*rep);
        self.report(Event::Reply { id: self.id, rep }, out);
    }

    /// Handles a retransmitted REP: the RTU was lost, or the MRA was deferred until now.
    pub fn on_duplicate_rep(&mut self, out: &mut Outbox) {
        out.counters.duplicates += 1;
        if matches!(self.state, State::Established | State::MraRepSent) {
            self.resend_answer(out);
        }
    }

    /// Handles a retransmitted REQ: its answer was lost, or the MRA was deferred until now.
    pub fn on_duplicate_req(&mut self, now: Time, out: &mut Outbox) {
        out.counters.duplicates += 1;
        match self.state {
            State::MraReqSent => self.resend_answer(out),
            State::RepSent | State::MraRepReceived => {
                if let Some(retransmission) = &mut self.retransmission {
                    out.send_mad(self.address, retransmission.repeat(now));
                }
            }
            // A long delayed duplicate, or a faulty peer: the connection has ended.
            State::TimeWait => {
                let (info, private_data) = (Info::default(), PrivateData::default());
                let rej = Rej {
                    local_comm_id: self.id.0,
                    remote_comm_id: self.remote_comm_id(),
                    answered: Answered::Req,
                    reason: RejectReason::STALE_CONNECTION,
                    info,
                    private_data,
                };
                out.send(self.address, self.transaction, &Message::Rej(rej));
            }
            _ => {}
        }
    }

    /// Handles an RTU.
    pub fn on_rtu(&mut self, rtu: &Rtu, out: &mut Outbox) {
        if !matches!(self.state, State::RepSent | State::MraRepReceived) {
            out.counters.duplicates += 1;
            return;
        }
        self.enter(State::Established);
        let private_data = Box::new(rtu.private_data);
        let id = self.id;
        self.report(Event::Ready { id, private_data }, out);
    }

    /// Handles an MRA: extends the timeout of the message that it answers.
    ///
    /// Only one MRA counts for each transmission of the message, so that a peer cannot delay for
    /// ever.
    pub fn on_mra(&mut self, now: Time, mra: &Mra, out: &mut Outbox) {
        let state = match (self.state, mra.answered) {
            (State::ReqSent, Answered::Req) if !self.is_unsent() => State::MraReqReceived,
            (State::RepSent, Answered::Rep) => State::MraRepReceived,
            (State::MraReqReceived | State::MraRepReceived, _) => {
                out.counters.duplicates += 1;
                return;
            }
            _ => {
                out.counters.unmatched += 1;
                return;
            }
        };
        let more =
            timing::from_peer(mra.service_timeout) + timing::from_peer(self.parameters.ack_timeout);
        if let Some(retransmission) = &mut self.retransmission {
            retransmission.extend(now, more);
        }
        self.state = state;
        let event = Event::Delayed {
            id: self.id,
            service_timeout: mra.service_timeout,
            private_data: Box::new(mra.private_data),
        };
        self.report(event, out);
    }

    /// Handles a REJ.
    pub fn on_rej(&mut self, now: Time, rej: &Rej, out: &mut Outbox) {
        match self.state {
            State::ReqSent
            | State::MraReqReceived
            | State::ReqReceived
            | State::MraReqSent
            | State::RepSent
            | State::MraRepReceived => {
                if rej.reason == RejectReason::STALE_CONNECTION {
                    self.enter_time_wait(now);
                } else {
                    self.enter(State::Idle);
                }
            }
            State::RepReceived | State::MraRepSent | State::Established | State::DreqSent => {
                self.enter_time_wait(now);
            }
            State::Idle | State::DreqReceived | State::TimeWait => {
                out.counters.unmatched += 1;
                return;
            }
        }
        let event = Event::Rejected {
            id: self.id,
            reason: rej.reason,
            info: rej.info,
            private_data: Box::new(rej.private_data),
            last: self.state == State::Idle,
        };
        self.report(event, out);
    }

    /// Handles a DREQ; drops it unless it names the local queue pair.
    pub fn on_dreq(&mut self, now: Time, transaction: u64, dreq: &Dreq, out: &mut Outbox) {
        if self.parameters.local_qpn != Some(dreq.remote_qpn) {
            out.counters.unmatched += 1;
            return;
        }
        match self.state {
            State::Established | State::RepSent | State::MraRepReceived => {
                self.transaction = transaction;
                self.enter(State::DreqReceived);
                let private_data = Box::new(dreq.private_data);
                let id = self.id;
                if self.abandoned {
                    self.send_drep(now, PrivateData::default(), out);
                } else {
                    self.report(Event::DisconnectRequest { id, private_data }, out);
                }
            }
            // Both sides disconnect at once: both send a DREP.
            State::DreqSent => {
                self.transaction = transaction;
                self.send_drep(now, PrivateData::default(), out);
                let event = Event::Disconnected {
                    id: self.id,
                    private_data: Box::default(),
                };
                self.report(event, out);
            }
            State::TimeWait => {
                out.counters.duplicates += 1;
                match &self.answer {
                    Some(_) => self.resend_answer(out),
                    None => {
                        self.transaction = transaction;
                        let drep = self.drep(PrivateData::default());
                        self.send_answer(&drep, out);
                    }
                }
            }
            State::DreqReceived => out.counters.duplicates += 1,
            _ => out.counters.unmatched += 1,
        }
    }

    /// Handles a DREP.
    pub fn on_drep(&mut self, now: Time, drep: &Drep, out: &mut Outbox) {
        if self.state != State::DreqSent {
            out.counters.unmatched += 1;
            return;
        }
        self.enter_time_wait(now);
        let event = Event::Disconnected {
            id: self.id,
            private_data: Box::new(drep.private_data),
        };
        self.report(event, out);
    }

    /// Refuses a LAP: RoCE has no alternate paths at the CM.
    pub fn on_lap(&self, address: Address, transaction: u64, lap: &Lap, out: &mut Outbox) {
        let apr = refusal(lap, ApStatus::UNSUPPORTED);
        out.send(address, transaction, &apr);
    }
}

/// Returns the APR that refuses a LAP.
pub(in super::super) fn refusal(lap: &Lap, status: ApStatus) -> Message {
    Message::Apr(Apr {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        status,
        info: Info::default(),
        private_data: PrivateData::default(),
    })
}
