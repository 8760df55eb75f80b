//! What the program is told.

use super::wire::private_data::{Info, PrivateData};
use super::wire::{RejectReason, Rep, Req, SidrRep, SidrReq, disconnect, mra, rej, rtu};
use super::{Address, CommId, ListenerId};

/// What a message was sent to get, and nobody sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// The answer to a REQ. The identifier is no more.
    Rep,
    /// The answer to a REP. The connection waits until no packet of it is under way.
    Rtu,
    /// The answer to a DREQ. The connection waits, as if it had come.
    Drep,
    /// The answer to a SIDR_REQ. The identifier is no more.
    SidrRep,
}

/// What happened to a connection, a listener or a resolution. Those that say so are the last of their
/// identifier, which does not exist any more.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody wants a connection. [`super::Manager::accept`] or [`super::Manager::reject`] is the
    /// answer.
    Request {
        /// Who listens.
        listener: ListenerId,
        /// The new connection.
        id: CommId,
        /// Who asks, and which of our addresses it asked.
        address: Address,
        /// The request. What is the peer's responder is our initiator, and the other way round.
        req: Box<Req>,
    },
    /// The peer accepts. [`super::Manager::ready`] is the answer, when the queue pair can receive and
    /// send.
    Reply {
        /// The connection.
        id: CommId,
        /// The reply.
        rep: Box<Rep>,
    },
    /// The peer is ready to use the connection, which is thereby established.
    Ready {
        /// The connection.
        id: CommId,
        /// From the peer's program.
        private_data: Box<PrivateData<{ rtu::PRIVATE_DATA }>>,
    },
    /// The program said that the connection is established, and so it is.
    Established {
        /// The connection.
        id: CommId,
    },
    /// The peer has a message, and takes a while to answer it.
    Delayed {
        /// The connection.
        id: CommId,
        /// How long it may take: 4.096 us x 2^n.
        service_timeout: u8,
        /// From the peer's program.
        private_data: Box<PrivateData<{ mra::PRIVATE_DATA }>>,
    },
    /// The peer does not want this connection.
    Rejected {
        /// The connection.
        id: CommId,
        /// Why.
        reason: RejectReason,
        /// More about it.
        info: Info,
        /// From the peer's program.
        private_data: Box<PrivateData<{ rej::PRIVATE_DATA }>>,
        /// Whether this is the last event. Otherwise [`Event::TimeWaitExit`] will be.
        last: bool,
    },
    /// The peer does not answer.
    TimedOut {
        /// The connection, or resolution.
        id: CommId,
        /// What should have come.
        awaited: Awaited,
    },
    /// The peer ends the connection. [`super::Manager::disconnect`] is the answer.
    DisconnectRequest {
        /// The connection.
        id: CommId,
        /// From the peer's program.
        private_data: Box<PrivateData<{ disconnect::DREQ_PRIVATE_DATA }>>,
    },
    /// The peer agrees that the connection is ended.
    Disconnected {
        /// The connection.
        id: CommId,
        /// From the peer's program.
        private_data: Box<PrivateData<{ disconnect::DREP_PRIVATE_DATA }>>,
    },
    /// The peer is gone, as the caller of [`super::Manager::lose`] found out. The connection is ended as
    /// by [`super::Manager::disconnect`].
    PeerLost {
        /// The connection.
        id: CommId,
    },
    /// No packet of the connection is under way any more, and its queue pair may be used for another.
    /// This is the last event.
    TimeWaitExit {
        /// The connection.
        id: CommId,
    },
    /// Somebody wants to know the queue pair of a service. [`super::Manager::answer`] is the answer.
    ResolutionRequest {
        /// Who listens.
        listener: ListenerId,
        /// The new resolution.
        id: CommId,
        /// Who asks, and which of our addresses it asked.
        address: Address,
        /// The request.
        req: Box<SidrReq>,
    },
    /// The answer to a resolution. This is its last event.
    Resolved {
        /// The resolution.
        id: CommId,
        /// The reply; its status says whether it is what was hoped for.
        rep: Box<SidrRep>,
    },
}

impl Event {
    /// Whose event it is.
    pub fn id(&self) -> CommId {
        match self {
            Event::Request { id, .. }
            | Event::Reply { id, .. }
            | Event::Ready { id, .. }
            | Event::Established { id }
            | Event::Delayed { id, .. }
            | Event::Rejected { id, .. }
            | Event::TimedOut { id, .. }
            | Event::DisconnectRequest { id, .. }
            | Event::Disconnected { id, .. }
            | Event::PeerLost { id }
            | Event::TimeWaitExit { id }
            | Event::ResolutionRequest { id, .. }
            | Event::Resolved { id, .. } => *id,
        }
    }

    /// Whether its identifier is no more. That of a [`Event::ResolutionRequest`] is no more when it is
    /// answered.
    pub fn is_last(&self) -> bool {
        match self {
            Event::TimeWaitExit { .. } | Event::Resolved { .. } => true,
            Event::Rejected { last, .. } => *last,
            Event::TimedOut { awaited, .. } => matches!(awaited, Awaited::Rep | Awaited::SidrRep),
            _ => false,
        }
    }
}
