//! Calls of the program on a connection.

use super::super::wire::path::LID_PERMISSIVE;
use super::super::wire::{
    Answered, Dreq, Ece, Info, Message, Mra, Path, PrivateData, RejectReason, Rep, Req, Rtu,
    ServiceId, Transport,
};
use super::super::wire::{disconnect, mra, rej, rep, req, rtu};
use super::super::{Address, CommId, Event, timing};
use super::{Connection, ConnectionParameters, Outbox, Paced, Phase, State, Target};
use crate::ids::{PKey, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::time::Time;

/// The parameters of an active connection request.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// The path of the CM messages.
    pub address: Address,
    /// The service ID to connect to.
    pub service: ServiceId,
    /// The GUID of the local channel adapter.
    pub ca_guid: u64,
    /// The transport service of the connection.
    pub transport: Transport,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The first PSN to be received. It should not be predictable.
    pub starting_psn: Psn,
    /// The most incoming READs and atomics outstanding at once.
    pub responder_resources: u8,
    /// The most outgoing READs and atomics outstanding at once.
    pub initiator_depth: u8,
    /// Whether the local queue pair implements end-to-end flow control.
    pub flow_control: bool,
    /// The transport retry count of both sides: 0 to 7.
    pub retry_count: u8,
    /// The peer's retry count after an RNR NAK: 0 to 6; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// Whether the local queue pair has a shared receive queue.
    pub srq: bool,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The static rate; the numbers of `enum ibv_rate`.
    pub packet_rate: u8,
    /// The flow label of the connection's packets, 20 bits.
    pub flow_label: u32,
    /// The hop limit of the connection's packets. At most 1 declares the path subnet-local.
    pub hop_limit: u8,
    /// The service level, 0 to 15.
    pub sl: u8,
    /// The packet lifetime: 4.096 us x 2^n.
    pub packet_life_time: u8,
    /// The local ACK delay: 4.096 us x 2^n.
    pub ack_delay: u8,
    /// The response timeout of the peer's CM: 4.096 us x 2^n, n up to 31.
    pub remote_response_timeout: u8,
    /// The response timeout of the local CM: 4.096 us x 2^n, n up to 31.
    pub local_response_timeout: u8,
    /// The most retransmissions of a CM message: 0 to 15.
    pub max_cm_retries: u8,
    /// The local vendor options.
    pub ece: Ece,
    /// Private data for the peer's program.
    pub private_data: PrivateData<{ req::PRIVATE_DATA }>,
}

/// The parameters with which a program accepts a request.
#[derive(Clone, Copy, Debug)]
pub struct Accept {
    /// The GUID of the local channel adapter.
    pub ca_guid: u64,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The first PSN to be received. It should not be predictable.
    pub starting_psn: Psn,
    /// The most incoming READs and atomics outstanding at once.
    pub responder_resources: u8,
    /// The most outgoing READs and atomics outstanding at once.
    pub initiator_depth: u8,
    /// The local ACK delay: 4.096 us x 2^n.
    pub ack_delay: u8,
    /// Whether the local queue pair implements end-to-end flow control.
    pub flow_control: bool,
    /// The peer's retry count after an RNR NAK: 0 to 6; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// Whether the local queue pair has a shared receive queue.
    pub srq: bool,
    /// The local vendor options.
    pub ece: Ece,
    /// Private data for the peer's program.
    pub private_data: PrivateData<{ rep::PRIVATE_DATA }>,
}

/// The time at which an MRA is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MraWhen {
    /// Immediately.
    Now,
    /// When the peer retransmits its message, and not otherwise.
    IfRepeated,
}

/// Why a call was refused. Verbs programs get EINVAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The identifier does not exist, or no longer exists.
    #[error("there is no communication {0}: it has ended or never existed")]
    Unknown(CommId),
    /// The state of the connection does not allow the call.
    #[error("communication {id} is in state {state:?}, which does not allow this call")]
    State {
        /// The connection.
        id: CommId,
        /// The state of the connection.
        state: State,
    },
}

/// The failover status of a REP when alternate paths are not supported (12.7.26).
const FAILOVER_NOT_SUPPORTED: u8 = 1;

impl Connection {
    /// Returns an active connection whose REQ waits to be sent, at `place` among those to `target`.
    pub fn active(
        id: CommId,
        transaction: u64,
        request: &Connect,
        (target, place): (Target, u64),
        now: Time,
    ) -> Self {
        let ack_timeout = timing::ack_timeout(request.ack_delay, request.packet_life_time);
        let req = Message::Req(req_of(id, request, ack_timeout));
        let response = timing::response(request.packet_life_time, request.remote_response_timeout);
        let phase = Phase::Unsent {
            req: Box::new(req.to_mad(transaction)),
            expires: now + response * (u32::from(request.max_cm_retries) + 1),
        };
        Connection {
            id,
            state: State::ReqSent,
            abandoned: false,
            address: request.address,
            transaction,
            ca_guid: request.ca_guid,
            peer: None,
            listener: None,
            alternate: false,
            parameters: ConnectionParameters {
                transport: request.transport,
                local_qpn: Some(request.qpn),
                remote_qpn: None,
                rq_psn: request.starting_psn,
                sq_psn: Psn::default(),
                path_mtu: request.path_mtu,
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
                retry_count: request.retry_count,
                rnr_retry_count: request.rnr_retry_count,
                ack_timeout,
                remote_gid: request.address.remote,
                flow_label: request.flow_label,
                traffic_class: request.address.traffic_class,
                hop_limit: request.hop_limit,
                sl: request.sl,
            },
            packet_life_time: request.packet_life_time,
            response,
            max_retries: request.max_cm_retries,
            pacing: Some(Paced {
                target,
                place,
                phase,
            }),
            retransmission: None,
            answer: None,
            time_wait_ends: Time::NEVER,
        }
    }

    /// Accepts a request: sends a REP.
    pub fn accept(
        &mut self,
        now: Time,
        accept: &Accept,
        out: &mut Outbox,
    ) -> Result<(), CallError> {
        self.expect(&[State::ReqReceived, State::MraReqSent])?;
        let xrc = self.parameters.transport == Transport::Xrc;
        let rep = Rep {
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_comm_id(),
            qkey: QKey(0),
            qpn: if xrc { Qpn::default() } else { accept.qpn },
            eecn: if xrc { accept.qpn.get() } else { 0 },
            starting_psn: accept.starting_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: if xrc { 0 } else { accept.initiator_depth },
            target_ack_delay: accept.ack_delay,
            failover_accepted: if self.alternate {
                FAILOVER_NOT_SUPPORTED
            } else {
                0
            },
            flow_control: accept.flow_control && !xrc,
            rnr_retry_count: accept.rnr_retry_count,
            srq: accept.srq || xrc,
            ca_guid: accept.ca_guid,
            ece: accept.ece,
            private_data: accept.private_data,
        };
        self.ca_guid = accept.ca_guid;
        let parameters = &mut self.parameters;
        parameters.local_qpn = Some(accept.qpn);
        parameters.rq_psn = accept.starting_psn;
        parameters.responder_resources = accept.responder_resources;
        parameters.initiator_depth = accept.initiator_depth;
        self.send_repeatedly(now, State::RepSent, &Message::Rep(rep), out);
        Ok(())
    }

    /// Rejects a request or a reply, or withdraws a message sent: sends a REJ.
    pub fn reject(
        &mut self,
        now: Time,
        reason: RejectReason,
        info: Info,
        private_data: PrivateData<{ rej::PRIVATE_DATA }>,
        out: &mut Outbox,
    ) -> Result<(), CallError> {
        match self.state {
            State::ReqSent if self.is_unsent() => {
                self.enter(State::Idle);
                Ok(())
            }
            State::ReqSent
            | State::MraReqReceived
            | State::ReqReceived
            | State::MraReqSent
            | State::RepReceived
            | State::MraRepSent => {
                self.send_rej(reason, info, private_data, out);
                self.enter(State::Idle);
                Ok(())
            }
            State::RepSent | State::MraRepReceived => {
                self.send_rej(reason, info, private_data, out);
                self.enter_time_wait(now);
                Ok(())
            }
            _ => Err(self.wrong_state()),
        }
    }

    /// Declares the local queue pair ready: sends an RTU.
    pub fn ready(
        &mut self,
        private_data: PrivateData<{ rtu::PRIVATE_DATA }>,
        out: &mut Outbox,
    ) -> Result<(), CallError> {
        self.expect(&[State::RepReceived, State::MraRepSent])?;
        let rtu = Rtu {
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_comm_id(),
            private_data,
        };
        self.enter(State::Established);
        self.send_answer(&Message::Rtu(rtu), out);
        Ok(())
    }

    /// Establishes the connection on the peer's first packet, before or instead of its RTU
    /// (12.9.7.2).
    pub fn establish(&mut self, out: &mut Outbox) -> Result<(), CallError> {
        self.expect(&[State::RepSent, State::MraRepReceived])?;
        self.enter(State::Established);
        self.report(Event::Established { id: self.id }, out);
        Ok(())
    }

    /// Announces to the peer that the answer is delayed: sends an MRA.
    pub fn delay(
        &mut self,
        service_timeout: u8,
        private_data: PrivateData<{ mra::PRIVATE_DATA }>,
        when: MraWhen,
        out: &mut Outbox,
    ) -> Result<(), CallError> {
        let (answered, state) = match self.state {
            State::ReqReceived => (Answered::Req, State::MraReqSent),
            State::RepReceived => (Answered::Rep, State::MraRepSent),
            _ => return Err(self.wrong_state()),
        };
        let mra = Message::Mra(Mra {
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_comm_id(),
            answered,
            service_timeout,
            private_data,
        });
        self.state = state;
        match when {
            MraWhen::Now => self.send_answer(&mra, out),
            MraWhen::IfRepeated => self.answer = Some(Box::new(mra.to_mad(self.transaction))),
        }
        Ok(())
    }

    /// Disconnects, or answers the peer's DREQ.
    pub fn disconnect(
        &mut self,
        now: Time,
        transaction: u64,
        private_data: PrivateData<{ disconnect::DREQ_PRIVATE_DATA }>,
        out: &mut Outbox,
    ) -> Result<(), CallError> {
        match self.state {
            State::Established => {
                let dreq = Dreq {
                    local_comm_id: self.id.0,
                    remote_comm_id: self.remote_comm_id(),
                    remote_qpn: self.parameters.remote_qpn.unwrap_or_default(),
                    private_data,
                };
                self.transaction = transaction;
                self.send_repeatedly(now, State::DreqSent, &Message::Dreq(dreq), out);
                Ok(())
            }
            State::DreqReceived => {
                let mut longer = PrivateData::default();
                longer.0[..private_data.len()].copy_from_slice(&private_data);
                self.send_drep(now, longer, out);
                Ok(())
            }
            _ => Err(self.wrong_state()),
        }
    }

    /// Handles the loss of the peer: reports it, and sends a DREQ in case the peer still exists.
    ///
    /// Returns false when the connection was not established.
    pub fn peer_lost(&mut self, now: Time, transaction: u64, out: &mut Outbox) -> bool {
        if self.state != State::Established {
            return false;
        }
        self.report(Event::PeerLost { id: self.id }, out);
        // Infallible: the state is Established.
        let _ = self.disconnect(now, transaction, PrivateData::default(), out);
        true
    }

    /// Sends a DREP and enters TimeWait.
    pub(super) fn send_drep(
        &mut self,
        now: Time,
        private_data: PrivateData<{ disconnect::DREP_PRIVATE_DATA }>,
        out: &mut Outbox,
    ) {
        let drep = self.drep(private_data);
        self.enter_time_wait(now);
        self.send_answer(&drep, out);
    }

    /// Detaches the program: the connection ends as its state requires, without further events.
    pub fn abandon(&mut self, now: Time, transaction: u64, out: &mut Outbox) {
        self.abandoned = true;
        match self.state {
            State::ReqSent if self.is_unsent() => self.enter(State::Idle),
            State::ReqSent | State::MraReqReceived => {
                self.send_timeout_rej(out);
                self.enter(State::Idle);
            }
            State::Established | State::DreqReceived => {
                // Infallible: both states allow it.
                let _ = self.disconnect(now, transaction, PrivateData::default(), out);
            }
            State::ReqReceived
            | State::MraReqSent
            | State::RepReceived
            | State::MraRepSent
            | State::RepSent
            | State::MraRepReceived => {
                let (info, private_data) = (Info::default(), PrivateData::default());
                // Infallible: all of these states allow it.
                let _ = self.reject(now, RejectReason::CONSUMER, info, private_data, out);
            }
            State::Idle | State::DreqSent | State::TimeWait => {}
        }
    }

    fn expect(&self, states: &[State]) -> Result<(), CallError> {
        if states.contains(&self.state) {
            Ok(())
        } else {
            Err(self.wrong_state())
        }
    }

    fn wrong_state(&self) -> CallError {
        CallError::State {
            id: self.id,
            state: self.state,
        }
    }
}

fn req_of(id: CommId, request: &Connect, ack_timeout: u8) -> Req {
    // Across a router the LIDs are unknown. RoCE, which has none, is encoded in the same way.
    let subnet_local = request.hop_limit <= 1;
    let lid = if subnet_local { 0 } else { LID_PERMISSIVE };
    // The XRC queue pair of the active side only sends (A14.5.1).
    let receives = request.transport != Transport::Xrc;
    Req {
        local_comm_id: id.0,
        service: request.service,
        ca_guid: request.ca_guid,
        qkey: QKey(0),
        qpn: request.qpn,
        responder_resources: if receives {
            request.responder_resources
        } else {
            0
        },
        initiator_depth: request.initiator_depth,
        remote_response_timeout: request.remote_response_timeout,
        transport: request.transport,
        flow_control: request.flow_control,
        starting_psn: request.starting_psn,
        local_response_timeout: request.local_response_timeout,
        retry_count: if receives { request.retry_count } else { 0 },
        pkey: PKey::DEFAULT,
        path_mtu: request.path_mtu as u8,
        rnr_retry_count: if receives { request.rnr_retry_count } else { 0 },
        max_cm_retries: request.max_cm_retries,
        srq: request.srq && receives,
        primary: Path {
            local_lid: lid,
            remote_lid: lid,
            local_gid: request.address.local,
            remote_gid: request.address.remote,
            flow_label: request.flow_label,
            packet_rate: request.packet_rate,
            traffic_class: request.address.traffic_class,
            hop_limit: request.hop_limit,
            sl: request.sl,
            subnet_local,
            local_ack_timeout: ack_timeout,
        },
        alternate: Path::default(),
        ece: request.ece,
        private_data: request.private_data,
    }
}
