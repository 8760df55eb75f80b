//! What the program does to a connection.

use super::super::wire::path::LID_PERMISSIVE;
use super::super::wire::{
    Answered, Dreq, Ece, Info, Message, Mra, Path, PrivateData, RejectReason, Rep, Req, Rtu,
    ServiceId, Transport,
};
use super::super::wire::{disconnect, mra, rej, rep, req, rtu};
use super::super::{Address, CommId, Event, timing};
use super::{Connection, ConnectionParameters, Outbox, State};
use crate::ids::{PKey, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::time::Time;

/// A connection that a program wants.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// Where to.
    pub address: Address,
    /// What for.
    pub service: ServiceId,
    /// The GUID of our channel adapter.
    pub ca_guid: u64,
    /// The service of the connection.
    pub transport: Transport,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN that we receive; better not one that can be guessed.
    pub starting_psn: Psn,
    /// READs and atomics of the peer that we take at once.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// Whether our queue pair has end-to-end flow control.
    pub flow_control: bool,
    /// How often both sides retry without an answer: 0 to 7.
    pub retry_count: u8,
    /// How often the peer retries after RNR NAK: 0 to 7, which is for ever.
    pub rnr_retry_count: u8,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The static rate; the numbers of `enum ibv_rate`.
    pub packet_rate: u8,
    /// Flow label of the connection's packets, 20 bits.
    pub flow_label: u32,
    /// Hop limit of the connection's packets. At most 1 says that there is no router.
    pub hop_limit: u8,
    /// Service level, to 15.
    pub sl: u8,
    /// How long a packet may be under way: 4.096 us x 2^n.
    pub packet_life_time: u8,
    /// The delay of our own acknowledgments: 4.096 us x 2^n.
    pub ack_delay: u8,
    /// How soon the peer should answer: 4.096 us x 2^n for n to 31.
    pub remote_response_timeout: u8,
    /// How soon we answer: 4.096 us x 2^n for n to 31.
    pub local_response_timeout: u8,
    /// How often messages are repeated: 0 to 15.
    pub max_cm_retries: u8,
    /// Our vendor's options.
    pub ece: Ece,
    /// For the peer's program.
    pub private_data: PrivateData<{ req::PRIVATE_DATA }>,
}

/// What a program says to a request that it accepts.
#[derive(Clone, Copy, Debug)]
pub struct Accept {
    /// The GUID of our channel adapter.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN that we receive; better not one that can be guessed.
    pub starting_psn: Psn,
    /// READs and atomics of the peer that we take at once.
    pub responder_resources: u8,
    /// READs and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// The delay of our acknowledgments: 4.096 us x 2^n.
    pub ack_delay: u8,
    /// Whether our queue pair has end-to-end flow control.
    pub flow_control: bool,
    /// How often the peer retries after RNR NAK: 0 to 7, which is for ever.
    pub rnr_retry_count: u8,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Our vendor's options.
    pub ece: Ece,
    /// For the peer's program.
    pub private_data: PrivateData<{ rep::PRIVATE_DATA }>,
}

/// When an MRA goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MraWhen {
    /// At once.
    Now,
    /// When the peer repeats its message: until then it need not know.
    IfRepeated,
}

/// Why a call is refused: EINVAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The identifier does not exist, or not any more.
    #[error("there is no communication {0}: it has come to its end, or never was")]
    Unknown(CommId),
    /// The connection is not in a state for this.
    #[error("communication {id} is in state {state:?}, where this cannot be done")]
    State {
        /// The connection.
        id: CommId,
        /// Its state.
        state: State,
    },
}

/// What became of an alternate path that was asked for (12.7.26): we have none.
const FAILOVER_NOT_SUPPORTED: u8 = 1;

impl Connection {
    /// A connection that begins with a REQ.
    pub fn active(
        id: CommId,
        transaction: u64,
        wanted: &Connect,
        now: Time,
        out: &mut Outbox,
    ) -> Self {
        let ack_timeout = timing::ack_timeout(wanted.ack_delay, wanted.packet_life_time);
        let mut connection = Connection {
            id,
            state: State::Idle,
            abandoned: false,
            address: wanted.address,
            transaction,
            ca_guid: wanted.ca_guid,
            peer: None,
            listener: None,
            alternate: false,
            parameters: ConnectionParameters {
                transport: wanted.transport,
                local_qpn: Some(wanted.qpn),
                remote_qpn: None,
                rq_psn: wanted.starting_psn,
                sq_psn: Psn::default(),
                path_mtu: wanted.path_mtu,
                responder_resources: wanted.responder_resources,
                initiator_depth: wanted.initiator_depth,
                retry_count: wanted.retry_count,
                rnr_retry_count: wanted.rnr_retry_count,
                ack_timeout,
                remote_gid: wanted.address.remote,
                flow_label: wanted.flow_label,
                traffic_class: wanted.address.traffic_class,
                hop_limit: wanted.hop_limit,
                sl: wanted.sl,
            },
            packet_life_time: wanted.packet_life_time,
            response: timing::response(wanted.packet_life_time, wanted.remote_response_timeout),
            max_retries: wanted.max_cm_retries,
            repeat: None,
            answer: None,
            time_wait_ends: Time::NEVER,
        };
        let req = Message::Req(req_of(id, wanted, ack_timeout));
        connection.send_repeatedly(now, State::ReqSent, &req, out);
        connection
    }

    /// Accepts: sends a REP.
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

    /// Rejects what has come, or takes back what was sent.
    pub fn reject(
        &mut self,
        now: Time,
        reason: RejectReason,
        info: Info,
        private_data: PrivateData<{ rej::PRIVATE_DATA }>,
        out: &mut Outbox,
    ) -> Result<(), CallError> {
        match self.state {
            State::ReqSent
            | State::MraReqReceived
            | State::ReqReceived
            | State::MraReqSent
            | State::RepReceived
            | State::MraRepSent => {
                self.send_rej(reason, info, private_data, out);
                self.settle_in(State::Idle);
                Ok(())
            }
            State::RepSent | State::MraRepReceived => {
                self.send_rej(reason, info, private_data, out);
                self.enter_time_wait(now);
                Ok(())
            }
            _ => Err(self.misplaced()),
        }
    }

    /// Our queue pair is ready: sends an RTU.
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
        self.settle_in(State::Established);
        self.send_answer(&Message::Rtu(rtu), out);
        Ok(())
    }

    /// The peer's first packet has come before its RTU, or in its place (12.9.7.2).
    pub fn establish(&mut self, out: &mut Outbox) -> Result<(), CallError> {
        self.expect(&[State::RepSent, State::MraRepReceived])?;
        self.settle_in(State::Established);
        self.tell(Event::Established { id: self.id }, out);
        Ok(())
    }

    /// Tells the peer that the answer takes a while.
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
            _ => return Err(self.misplaced()),
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

    /// Ends the connection, or agrees that the peer ends it.
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
                self.agree_to_end(now, longer, out);
                Ok(())
            }
            _ => Err(self.misplaced()),
        }
    }

    /// The peer is gone, or as good as that: it is told so in case it is not. True when there was a
    /// connection.
    pub fn lose(&mut self, now: Time, transaction: u64, out: &mut Outbox) -> bool {
        if self.state != State::Established {
            return false;
        }
        self.tell(Event::PeerLost { id: self.id }, out);
        // That state takes it.
        let _ = self.disconnect(now, transaction, PrivateData::default(), out);
        true
    }

    /// Sends a DREP, and waits until no packet is under way.
    pub(super) fn agree_to_end(
        &mut self,
        now: Time,
        private_data: PrivateData<{ disconnect::DREP_PRIVATE_DATA }>,
        out: &mut Outbox,
    ) {
        let drep = self.drep(private_data);
        self.enter_time_wait(now);
        self.send_answer(&drep, out);
    }

    /// The program has no more to do with it. It ends in the manner of its state, without a word to
    /// the program.
    pub fn abandon(&mut self, now: Time, transaction: u64, out: &mut Outbox) {
        self.abandoned = true;
        match self.state {
            State::ReqSent | State::MraReqReceived => {
                self.send_timeout_rej(out);
                self.settle_in(State::Idle);
            }
            State::Established | State::DreqReceived => {
                // Both states take it.
                let _ = self.disconnect(now, transaction, PrivateData::default(), out);
            }
            State::ReqReceived
            | State::MraReqSent
            | State::RepReceived
            | State::MraRepSent
            | State::RepSent
            | State::MraRepReceived => {
                let (info, private_data) = (Info::default(), PrivateData::default());
                // All of these states take it.
                let _ = self.reject(now, RejectReason::CONSUMER, info, private_data, out);
            }
            State::Idle | State::DreqSent | State::TimeWait => {}
        }
    }

    fn expect(&self, states: &[State]) -> Result<(), CallError> {
        if states.contains(&self.state) {
            Ok(())
        } else {
            Err(self.misplaced())
        }
    }

    fn misplaced(&self) -> CallError {
        CallError::State {
            id: self.id,
            state: self.state,
        }
    }
}

fn req_of(id: CommId, wanted: &Connect, ack_timeout: u8) -> Req {
    // With a router in between nobody knows the other's LID; RoCE, which has none, says the same.
    let subnet_local = wanted.hop_limit <= 1;
    let lid = if subnet_local { 0 } else { LID_PERMISSIVE };
    // The XRC queue pair that asks only sends (A14.5.1).
    let receives = wanted.transport != Transport::Xrc;
    Req {
        local_comm_id: id.0,
        service: wanted.service,
        ca_guid: wanted.ca_guid,
        qkey: QKey(0),
        qpn: wanted.qpn,
        responder_resources: if receives {
            wanted.responder_resources
        } else {
            0
        },
        initiator_depth: wanted.initiator_depth,
        remote_response_timeout: wanted.remote_response_timeout,
        transport: wanted.transport,
        flow_control: wanted.flow_control,
        starting_psn: wanted.starting_psn,
        local_response_timeout: wanted.local_response_timeout,
        retry_count: if receives { wanted.retry_count } else { 0 },
        pkey: PKey::DEFAULT,
        path_mtu: wanted.path_mtu as u8,
        rnr_retry_count: if receives { wanted.rnr_retry_count } else { 0 },
        max_cm_retries: wanted.max_cm_retries,
        srq: wanted.srq && receives,
        primary: Path {
            local_lid: lid,
            remote_lid: lid,
            local_gid: wanted.address.local,
            remote_gid: wanted.address.remote,
            flow_label: wanted.flow_label,
            packet_rate: wanted.packet_rate,
            traffic_class: wanted.address.traffic_class,
            hop_limit: wanted.hop_limit,
            sl: wanted.sl,
            subnet_local,
            local_ack_timeout: ack_timeout,
        },
        alternate: Path::default(),
        ece: wanted.ece,
        private_data: wanted.private_data,
    }
}
