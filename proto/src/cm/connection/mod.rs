//! The state machine of one connection (12.9.5 to 12.9.8).
//!
//! `calls` has the calls of the program, `messages` the messages of the peer, `time` the timeouts,
//! `pacing` the wait before the REQ.
//! A connection does not know the others. The manager finds the connection that a message is for,
//! and checks its source.

mod calls;
mod messages;
mod pacing;
mod time;

pub use calls::{Accept, CallError, Connect, MraWhen};
pub(super) use messages::{qpn_of, refusal};

use super::outbox::Outbox;
use super::pacing::Target;
use super::retransmission::Retransmission;
use super::wire::path::Path;
use super::wire::private_data::{Info, PrivateData};
use super::wire::{Answered, Drep, Mad, Message, Rej, RejectReason, Req, Transport};
use super::{Address, CommId, Event, ListenerId, timing};
use crate::ids::{Gid, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::time::Time;
use std::time::Duration;

/// The states of a connection (12.9.5, 12.9.6). Listeners are in a table of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Ended; the identifier is free.
    Idle,
    /// Active: REQ sent.
    ReqSent,
    /// Active: the peer acknowledged the REQ with an MRA.
    MraReqReceived,
    /// Active: REP received and reported to the program.
    RepReceived,
    /// Active: MRA for the REP sent.
    MraRepSent,
    /// Passive: REQ received and reported to the program.
    ReqReceived,
    /// Passive: MRA for the REQ sent.
    MraReqSent,
    /// Passive: REP sent.
    RepSent,
    /// Passive: the peer acknowledged the REP with an MRA.
    MraRepReceived,
    /// Established.
    Established,
    /// DREQ sent.
    DreqSent,
    /// DREQ received and reported to the program.
    DreqReceived,
    /// Ended, while packets may still be in flight (12.9.8.4).
    TimeWait,
}

/// The parameters of a queue pair that a connection determines, from the local side's view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectionParameters {
    /// The transport service.
    pub transport: Transport,
    /// The local queue pair; `None` until a request is accepted.
    pub local_qpn: Option<Qpn>,
    /// The peer's queue pair, once it is known.
    pub remote_qpn: Option<Qpn>,
    /// The first PSN to be received.
    pub rq_psn: Psn,
    /// The first PSN to send.
    pub sq_psn: Psn,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The most incoming READs and atomics outstanding at once.
    pub responder_resources: u8,
    /// The most outgoing READs and atomics outstanding at once.
    pub initiator_depth: u8,
    /// The retry count without an acknowledgement.
    pub retry_count: u8,
    /// The retry count after an RNR NAK.
    pub rnr_retry_count: u8,
    /// The local ACK timeout: 4.096 us x 2^n.
    pub ack_timeout: u8,
    /// The GID of the peer's queue pair.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
}

/// The identity of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    /// The peer's communication ID.
    pub comm_id: u32,
    /// The GUID of the peer's channel adapter.
    pub ca_guid: u64,
    /// The peer's queue pair.
    pub qpn: Qpn,
}

/// The part of an active connection in the pacing of REQs.
#[derive(Debug)]
struct Paced {
    target: Target,
    /// The place among the requests to the target.
    place: u64,
    phase: Phase,
}

/// The phases of a paced request.
#[derive(Debug)]
enum Phase {
    /// The REQ waits to be sent.
    Unsent { req: Box<Mad>, expires: Time },
    /// The REQ was sent and counts as unanswered.
    Counted,
    /// The REQ was not answered in time, and waits to be retransmitted.
    Lost { expires: Time },
    /// The REQ was answered, or has no early retransmission left.
    Done,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    id: CommId,
    state: State,
    /// Whether the program is detached: the connection ends without further events.
    abandoned: bool,
    address: Address,
    /// The transaction ID of the next answer, or of the last request sent.
    transaction: u64,
    ca_guid: u64,
    peer: Option<Peer>,
    /// The listener whose backlog the request occupies; `None` once it no longer does.
    listener: Option<ListenerId>,
    /// Whether the REQ proposed an alternate path.
    alternate: bool,
    parameters: ConnectionParameters,
    packet_life_time: u8,
    /// The response timeout of the peer.
    response: Duration,
    max_retries: u8,
    /// The part of an active connection in the pacing of REQs.
    pacing: Option<Paced>,
    /// The message to retransmit until it is answered.
    retransmission: Option<Retransmission>,
    /// The answer to resend when the peer retransmits its message.
    answer: Option<Box<Mad>>,
    time_wait_ends: Time,
}

impl Connection {
    /// Creates the connection for a REQ; `None` if its path MTU is invalid.
    pub fn passive(
        id: CommId,
        listener: ListenerId,
        address: Address,
        transaction: u64,
        req: &Req,
    ) -> Option<Self> {
        let Path {
            local_gid,
            flow_label,
            traffic_class,
            hop_limit,
            sl,
            local_ack_timeout,
            ..
        } = req.primary;
        Some(Connection {
            id,
            state: State::ReqReceived,
            abandoned: false,
            address,
            transaction,
            ca_guid: 0,
            peer: Some(Peer {
                comm_id: req.local_comm_id,
                ca_guid: req.ca_guid,
                qpn: req.qpn,
            }),
            listener: Some(listener),
            alternate: req.alternate.local_lid != 0,
            parameters: ConnectionParameters {
                transport: req.transport,
                local_qpn: None,
                remote_qpn: Some(req.qpn),
                rq_psn: Psn::default(),
                sq_psn: req.starting_psn,
                path_mtu: req.mtu()?,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                ack_timeout: local_ack_timeout,
                remote_gid: local_gid,
                flow_label,
                traffic_class,
                hop_limit,
                sl,
            },
            packet_life_time: local_ack_timeout.saturating_sub(1),
            response: timing::from_peer(req.local_response_timeout),
            max_retries: req.max_cm_retries,
            pacing: None,
            retransmission: None,
            answer: None,
            time_wait_ends: Time::NEVER,
        })
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The parameters of the queue pair.
    pub fn parameters(&self) -> &ConnectionParameters {
        &self.parameters
    }

    /// The peer's identity, once it is known.
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// The path of the CM messages.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Whether the addresses of a message are those of this connection.
    pub fn is_from_peer(&self, address: &Address) -> bool {
        (address.local, address.remote) == (self.address.local, self.address.remote)
    }

    /// Releases the backlog of the listener. Returns the listener if the request still occupied it.
    pub fn leave_backlog(&mut self) -> Option<ListenerId> {
        self.listener.take()
    }

    /// Like [`Self::leave_backlog`], once the program has answered the request.
    pub fn take_listener(&mut self) -> Option<ListenerId> {
        match self.state {
            State::ReqReceived | State::MraReqSent => None,
            _ => self.listener.take(),
        }
    }

    /// The time at which to call [`Self::on_timeout`].
    pub fn deadline(&self) -> Time {
        if let Some(expires) = self.wait_expires() {
            return expires;
        }
        match &self.retransmission {
            Some(retransmission) => retransmission.due(),
            None => self.time_wait_ends,
        }
    }

    /// Enters `state`, in which no message awaits an answer.
    fn enter(&mut self, state: State) {
        self.state = state;
        self.retransmission = None;
    }

    /// Enters TimeWait for the time that packets may be in flight.
    fn enter_time_wait(&mut self, now: Time) {
        self.enter(State::TimeWait);
        self.answer = None;
        self.time_wait_ends = now + timing::from_peer(self.parameters.ack_timeout);
    }

    /// Sends a message and retransmits it until it is answered.
    fn send_repeatedly(&mut self, now: Time, state: State, message: &Message, out: &mut Outbox) {
        let mad = Box::new(message.to_mad(self.transaction));
        let retransmission = Retransmission::new(mad, self.max_retries, self.response, now);
        out.send_mad(self.address, retransmission.mad());
        self.state = state;
        self.retransmission = Some(retransmission);
    }

    /// Sends a message and keeps it to resend when the peer retransmits its own.
    fn send_answer(&mut self, message: &Message, out: &mut Outbox) {
        let mad = Box::new(message.to_mad(self.transaction));
        out.send_mad(self.address, mad.clone());
        self.answer = Some(mad);
    }

    /// Resends the last answer.
    fn resend_answer(&self, out: &mut Outbox) {
        if let Some(mad) = &self.answer {
            out.send_mad(self.address, mad.clone());
        }
    }

    fn report(&self, event: Event, out: &mut Outbox) {
        if !self.abandoned {
            out.events.push_back(event);
        }
    }

    /// The peer's communication ID; 0 while it is unknown.
    fn remote_comm_id(&self) -> u32 {
        self.peer.map_or(0, |peer| peer.comm_id)
    }

    fn send_rej(
        &self,
        reason: RejectReason,
        info: Info,
        private_data: PrivateData<{ super::wire::rej::PRIVATE_DATA }>,
        out: &mut Outbox,
    ) {
        let answered = match self.state {
            State::ReqReceived | State::MraReqSent => Answered::Req,
            State::RepReceived | State::MraRepSent => Answered::Rep,
            _ => Answered::Other,
        };
        // Without an earlier answer to its REQ, the peer does not know the local ID.
        let local_comm_id = match self.state {
            State::ReqReceived => 0,
            _ => self.id.0,
        };
        let rej = Rej {
            local_comm_id,
            remote_comm_id: self.remote_comm_id(),
            answered,
            reason,
            info,
            private_data,
        };
        out.send(self.address, self.transaction, &Message::Rej(rej));
    }

    /// Sends a REJ with the reason timeout.
    ///
    /// It carries the local GUID, by which the peer finds the connection even when its
    /// communication ID is not known here (12.6.7.2).
    fn send_timeout_rej(&self, out: &mut Outbox) {
        let guid = Info::from(self.ca_guid.to_be_bytes());
        self.send_rej(RejectReason::TIMEOUT, guid, PrivateData::default(), out);
    }

    fn drep(
        &self,
        private_data: PrivateData<{ super::wire::disconnect::DREP_PRIVATE_DATA }>,
    ) -> Message {
        Message::Drep(Drep {
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_comm_id(),
            private_data,
        })
    }
}
