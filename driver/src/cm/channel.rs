//! Events of the connection manager, and the channels that they arrive at.

use super::id::Id;
use super::multicast::Group;
use crate::event_queue::EventQueue;
use std::sync::Arc;
pub use urxe_proto::cm::wire::Ece;
use urxe_proto::ids::{QKey, Qpn};
use urxe_proto::qp::AddressVector;

/// What happened; the numbers of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// The device for the destination is known.
    AddressResolved = 0,
    /// There is none.
    AddressError = 1,
    /// The path is known.
    RouteResolved = 2,
    /// Somebody wants a connection, or to know the queue pair of a datagram service.
    ConnectRequest = 4,
    /// The peer accepts. The queue pair must be made ready, and then [`Id::ready`] called.
    ConnectResponse = 5,
    /// The peer does not answer, or has no such datagram service.
    Unreachable = 7,
    /// The peer does not want this connection.
    Rejected = 8,
    /// The connection is there, or the datagram service's queue pair known.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// A group is joined, and how to send to it known.
    MulticastJoin = 12,
    /// The device's link has another address.
    AddressChange = 14,
    /// No packet of the connection is under way any more.
    TimewaitExit = 15,
    /// A name stands for these addresses.
    AddressInfoResolved = 16,
    /// A program put it there, with a number of its own.
    User = 18,
}

/// What an event says beside its kind.
#[derive(Clone, Debug, Default)]
pub enum Details {
    /// Nothing.
    #[default]
    None,
    /// Of a connection.
    Connection(Box<ConnectionDetails>),
    /// Of a datagram service.
    Datagram(Box<DatagramDetails>),
    /// Of a multicast group.
    Multicast(Arc<Group>, Box<DatagramDetails>),
    /// A program's number.
    User(u64),
}

/// What a peer said of a connection. What it does as responder is ours as initiator: the numbers are
/// those that are to be used here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionDetails {
    /// From the peer's program, with the zeros that fill the message.
    pub private_data: Vec<u8>,
    /// READs and atomics that are served at once.
    pub responder_resources: u8,
    /// READs and atomics that may be outstanding.
    pub initiator_depth: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// How often to retry without an answer.
    pub retry_count: u8,
    /// How often to retry after RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer has a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The options of the peer's vendor.
    pub ece: Ece,
}

/// What a peer said of a datagram service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DatagramDetails {
    /// From the peer's program, with the zeros that fill the message.
    pub private_data: Vec<u8>,
    /// The way to it.
    pub av: AddressVector,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The key of its queue pair.
    pub qkey: QKey,
}

/// Something that happened to an identifier.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which; for a request, the new one.
    pub id: Arc<Id>,
    /// Who listened, for a request.
    pub listener: Option<Arc<Id>>,
    /// What.
    pub kind: EventKind,
    /// 0, or a negative errno, or the reason that a peer gave.
    pub status: i32,
    /// What else there is to say.
    pub details: Details,
}

impl Event {
    /// Whose event it is: who waits with its end until it was acknowledged.
    pub fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

/// Where the events of any number of identifiers arrive.
pub type EventChannel = EventQueue<Event>;
