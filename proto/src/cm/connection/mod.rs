//! One connection: its states, and what leads from one to another (12.9.5 to 12.9.8).
//!
//! `calls` is what the program does to it, `messages` what the peer does, `time` what the clock does.
//! A connection does not know of others: who a message is for, and whether it may be, is settled
//! before.

mod calls;
mod messages;
mod time;

pub use calls::{Accept, CallError, Connect, MraWhen};
pub(super) use messages::{qpn_of, refusal};

use super::outbox::Outbox;
use super::repeat::Repeat;
use super::wire::path::Path;
use super::wire::private_data::{Info, PrivateData};
use super::wire::{Answered, Drep, Mad, Message, Rej, RejectReason, Req, Transport};
use super::{Address, CommId, Event, ListenerId, timing};
use crate::ids::{Gid, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::time::Time;
use std::time::Duration;

/// The states of a connection (12.9.5, 12.9.6). Listening is not one: listeners are a table of their
/// own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Nothing is left of it.
    Idle,
    /// Active: a REQ is sent.
    ReqSent,
    /// Active: the peer has the REQ, and takes a while.
    MraReqReceived,
    /// Active: a REP has come, and the program has it.
    RepReceived,
    /// Active: the peer was told that the RTU takes a while.
    MraRepSent,
    /// Passive: a REQ has come, and the program has it.
    ReqReceived,
    /// Passive: the peer was told that the REP takes a while.
    MraReqSent,
    /// Passive: a REP is sent.
    RepSent,
    /// Passive: the peer has the REP, and takes a while.
    MraRepReceived,
    /// The connection may be used.
    Established,
    /// A DREQ is sent.
    DreqSent,
    /// A DREQ has come, and the program has it.
    DreqReceived,
    /// It has ended, and packets of it may be under way (12.9.8.4).
    TimeWait,
}

/// What a queue pair needs to know of its connection, from the side that asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionParameters {
    /// The service.
    pub transport: Transport,
    /// Our queue pair; of a request that is not accepted, none.
    pub local_qpn: Option<Qpn>,
    /// The peer's queue pair, once it is known.
    pub remote_qpn: Option<Qpn>,
    /// The first PSN that we receive.
    pub rq_psn: Psn,
    /// The first PSN that we send.
    pub sq_psn: Psn,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// READs and atomics of the peer that we take at once.
    pub responder_resources: u8,
    /// READs and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// How often to retry without an answer.
    pub retry_count: u8,
    /// How often to retry after RNR NAK.
    pub rnr_retry_count: u8,
    /// The ACK timeout: 4.096 us x 2^n.
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

/// What is known of the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    /// Its communication ID.
    pub comm_id: u32,
    /// Its channel adapter.
    pub ca_guid: u64,
    /// Its queue pair.
    pub qpn: Qpn,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    id: CommId,
    state: State,
    /// The program has forgotten it: it goes on alone to its end, and tells nobody.
    abandoned: bool,
    address: Address,
    /// The transaction of the message that is answered next, or was sent last.
    transaction: u64,
    ca_guid: u64,
    peer: Option<Peer>,
    /// Who listened, until the program takes the request up.
    listener: Option<ListenerId>,
    /// Whether the peer asked for an alternate path too.
    alternate: bool,
    parameters: ConnectionParameters,
    packet_life_time: u8,
    /// How soon the peer answers.
    response: Duration,
    max_retries: u8,
    /// The message that waits for an answer.
    repeat: Option<Repeat>,
    /// What is said again when the peer repeats itself.
    answer: Option<Box<Mad>>,
    time_wait_ends: Time,
}

impl Connection {
    /// The connection that a REQ asks for. `None` when its path MTU means nothing.
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
            repeat: None,
            answer: None,
            time_wait_ends: Time::NEVER,
        })
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// What its queue pair needs to know.
    pub fn parameters(&self) -> &ConnectionParameters {
        &self.parameters
    }

    /// What is known of the peer.
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// The way to the peer.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Whether a message that came this way can be its peer's.
    pub fn is_from_peer(&self, address: &Address) -> bool {
        (address.local, address.remote) == (self.address.local, self.address.remote)
    }

    /// The program takes the request up. Who listened, if it waited.
    pub fn take_up(&mut self) -> Option<ListenerId> {
        self.listener.take()
    }

    /// Who listened, once the request does not wait for the program any more.
    pub fn take_listener(&mut self) -> Option<ListenerId> {
        match self.state {
            State::ReqReceived | State::MraReqSent => None,
            _ => self.listener.take(),
        }
    }

    /// When it wants to look at the clock.
    pub fn deadline(&self) -> Time {
        match &self.repeat {
            Some(repeat) => repeat.due(),
            None => self.time_wait_ends,
        }
    }

    /// Goes to `state`, where nothing waits for an answer.
    fn settle_in(&mut self, state: State) {
        self.state = state;
        self.repeat = None;
    }

    /// Its end, while packets may be under way.
    fn enter_time_wait(&mut self, now: Time) {
        self.settle_in(State::TimeWait);
        self.answer = None;
        self.time_wait_ends = now + timing::from_peer(self.parameters.ack_timeout);
    }

    /// Sends a message, and repeats it until there is an answer.
    fn send_repeatedly(&mut self, now: Time, state: State, message: &Message, out: &mut Outbox) {
        let mad = Box::new(message.to_mad(self.transaction));
        let repeat = Repeat::new(mad, self.max_retries, self.response, now);
        out.send_mad(self.address, repeat.mad());
        self.state = state;
        self.repeat = Some(repeat);
    }

    /// Sends a message that is said again when the peer repeats itself.
    fn send_answer(&mut self, message: &Message, out: &mut Outbox) {
        let mad = Box::new(message.to_mad(self.transaction));
        out.send_mad(self.address, mad.clone());
        self.answer = Some(mad);
    }

    /// Says the last answer again.
    fn answer_again(&self, out: &mut Outbox) {
        if let Some(mad) = &self.answer {
            out.send_mad(self.address, mad.clone());
        }
    }

    fn tell(&self, event: Event, out: &mut Outbox) {
        if !self.abandoned {
            out.events.push_back(event);
        }
    }

    /// The peer's communication ID, 0 while there is none.
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
        // The peer of a REQ that was never answered does not know our ID.
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

    /// Tells the peer that we gave up waiting for it. Our GUID lets it find the connection even when
    /// we do not know its ID (12.6.7.2).
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
