//! Events for the program.

use super::wire::private_data::{Info, PrivateData};
use super::wire::{RejectReason, Rep, Req, SidrRep, SidrReq, disconnect, mra, rej, rtu};
use super::{Address, CommId, ListenerId};

/// The response that did not arrive in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// The REP to a REQ. The identifier no longer exists.
    Rep,
    /// The RTU to a REP. The connection enters TimeWait.
    Rtu,
    /// The DREP to a DREQ. The connection enters TimeWait.
    Drep,
    /// The SIDR_REP to a SIDR_REQ. The identifier no longer exists.
    SidrRep,
}

/// An event of a connection or of a service ID resolution.
///
/// After the last event of an identifier ([`Event::is_last`]) the identifier no longer exists.
#[derive(Clone, Debug)]
pub enum Event {
    /// A peer requests a connection. Answer with [`super::Manager::accept`] or
    /// [`super::Manager::reject`].
    Request {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        id: CommId,
        /// The path to the peer; its local address is the one that the peer requested.
        address: Address,
        /// The request. The peer's responder resources are the local initiator depth, and vice
        /// versa.
        req: Box<Req>,
    },
    /// The peer accepted. Call [`super::Manager::ready`] when the queue pair can send and receive.
    Reply {
        /// The connection.
        id: CommId,
        /// The reply.
        rep: Box<Rep>,
    },
    /// The peer is ready; the connection is established.
    Ready {
        /// The connection.
        id: CommId,
        /// Private data from the peer's program.
        private_data: Box<PrivateData<{ rtu::PRIVATE_DATA }>>,
    },
    /// The program has called [`super::Manager::establish`]; the connection is established.
    Established {
        /// The connection.
        id: CommId,
    },
    /// The peer sent an MRA: its response will take longer.
    Delayed {
        /// The connection.
        id: CommId,
        /// The announced delay: 4.096 us x 2^n.
        service_timeout: u8,
        /// Private data from the peer's program.
        private_data: Box<PrivateData<{ mra::PRIVATE_DATA }>>,
    },
    /// The peer rejected the connection.
    Rejected {
        /// The connection.
        id: CommId,
        /// The reason.
        reason: RejectReason,
        /// Additional information.
        info: Info,
        /// Private data from the peer's program.
        private_data: Box<PrivateData<{ rej::PRIVATE_DATA }>>,
        /// Whether this is the last event; otherwise [`Event::TimeWaitExit`] follows.
        last: bool,
    },
    /// The peer did not respond.
    TimedOut {
        /// The connection or resolution.
        id: CommId,
        /// The missing response.
        awaited: Awaited,
    },
    /// The peer disconnects. Answer with [`super::Manager::disconnect`].
    DisconnectRequest {
        /// The connection.
        id: CommId,
        /// Private data from the peer's program.
        private_data: Box<PrivateData<{ disconnect::DREQ_PRIVATE_DATA }>>,
    },
    /// The connection has ended.
    Disconnected {
        /// The connection.
        id: CommId,
        /// Private data from the peer's program.
        private_data: Box<PrivateData<{ disconnect::DREP_PRIVATE_DATA }>>,
    },
    /// The peer was declared lost by [`super::Manager::peer_lost`]. The connection ends as after
    /// [`super::Manager::disconnect`].
    PeerLost {
        /// The connection.
        id: CommId,
    },
    /// No packet of the connection is in flight any more, and its queue pair may be reused. The
    /// last event.
    TimeWaitExit {
        /// The connection.
        id: CommId,
    },
    /// A peer requests the queue pair number of a service. Answer with [`super::Manager::answer`].
    ResolutionRequest {
        /// The listener.
        listener: ListenerId,
        /// The new resolution.
        id: CommId,
        /// The path to the peer; its local address is the one that the peer requested.
        address: Address,
        /// The request.
        req: Box<SidrReq>,
    },
    /// A service ID resolution has completed. The last event.
    Resolved {
        /// The resolution.
        id: CommId,
        /// The reply; its status is the result of the resolution.
        rep: Box<SidrRep>,
    },
}

impl Event {
    /// The identifier that the event belongs to.
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

    /// Whether the identifier no longer exists after this event.
    ///
    /// The identifier of an [`Event::ResolutionRequest`] exists until the request is answered.
    pub fn is_last(&self) -> bool {
        match self {
            Event::TimeWaitExit { .. } | Event::Resolved { .. } => true,
            Event::Rejected { last, .. } => *last,
            Event::TimedOut { awaited, .. } => matches!(awaited, Awaited::Rep | Awaited::SidrRep),
            _ => false,
        }
    }
}
