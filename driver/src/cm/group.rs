//! A multicast group of an identifier.

use crate::event_queue::AckCount;
use std::net::SocketAddr;
use urxe_proto::ids::Gid;

/// A multicast group that an identifier has joined.
#[derive(Debug)]
pub struct Group {
    /// The address of the group, as the application gave it.
    pub address: SocketAddr,
    /// Whether the identifier only sends to the group.
    pub send_only: bool,
    /// A number that the caller of [`Id::join`](super::Id::join) has set.
    pub tag: usize,
    /// The events of the group that the application has not acknowledged.
    pub acks: AckCount,
}

impl Group {
    /// Returns the address as a GID.
    pub fn gid(&self) -> Gid {
        Gid::from_ip(self.address.ip())
    }
}
