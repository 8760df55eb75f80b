//! The kinds of events of the connection manager, and their details.

use super::group::Group;
use std::sync::Arc;
pub use urxe_proto::cm::wire::Ece;
use urxe_proto::ids::{QKey, Qpn};
use urxe_proto::qp::AddressVector;

/// The kind of an event; the values of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// The device for the destination is known.
    AddressResolved = 0,
    /// There is no device for the destination.
    AddressError = 1,
    /// The path to the destination is known.
    RouteResolved = 2,
    /// A peer requests a connection, or the queue pair of a datagram service.
    ConnectRequest = 4,
    /// The peer accepts. The application makes its queue pair ready, then calls
    /// [`super::Id::ready`].
    ConnectResponse = 5,
    /// The peer does not answer, or does not have the datagram service.
    Unreachable = 7,
    /// The peer rejects the connection.
    Rejected = 8,
    /// The connection is established, or the datagram service's queue pair is known.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device was removed.
    DeviceRemoval = 11,
    /// The group is joined; the details contain its address vector.
    MulticastJoin = 12,
    /// The link address of the device has changed.
    AddressChange = 14,
    /// TimeWait is over: no packet of the connection is in flight any more.
    TimewaitExit = 15,
    /// A host name is resolved to addresses.
    AddressInfoResolved = 16,
    /// An event of the application, with a number of its own.
    User = 18,
}

/// The details of an event.
#[derive(Clone, Debug, Default)]
pub enum Details {
    /// No details.
    #[default]
    None,
    /// The parameters of a connection.
    Connection(Box<ConnectionDetails>),
    /// The parameters of a datagram service.
    Datagram(Box<DatagramDetails>),
    /// The parameters of a multicast group.
    Multicast(Arc<Group>, Box<DatagramDetails>),
    /// The number of the application.
    User(u64),
}

/// The parameters that a peer has offered for a connection, from the local point of view: the
/// peer's responder resources are the local initiator depth, and vice versa.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionDetails {
    /// Data from the peer's application, padded with zeros to the size of the message's field.
    pub private_data: Vec<u8>,
    /// The maximum number of inbound READs and atomics that are outstanding.
    pub responder_resources: u8,
    /// The maximum number of outbound READs and atomics that are outstanding.
    pub initiator_depth: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// The number of retries without an acknowledgment.
    pub retry_count: u8,
    /// The number of retries after RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer has a shared receive queue.
    pub srq: bool,
    /// The number of the peer's queue pair.
    pub qpn: Qpn,
    /// The peer's vendor options for enhanced connection establishment.
    pub ece: Ece,
}

/// The parameters of a peer's datagram service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DatagramDetails {
    /// Data from the peer's application, padded with zeros to the size of the message's field.
    pub private_data: Vec<u8>,
    /// The address vector for sending to it.
    pub av: AddressVector,
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// The queue key of its queue pair.
    pub qkey: QKey,
}
