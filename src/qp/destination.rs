//! The destinations of datagrams.
#![forbid(unsafe_code)]

use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::AddressHandle;
use urxe_proto::ids::{Gid, QKey, Qpn};

/// The destination of a datagram: a queue pair or a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct DatagramAddress {
    /// The address of the queue pair's port, or of the group.
    pub gid: Gid,
    /// The queue pair number; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key that the receiver requires.
    pub qkey: QKey,
}

impl DatagramAddress {
    /// Returns the address of a queue pair.
    pub const fn new(gid: Gid, qpn: Qpn, qkey: QKey) -> DatagramAddress {
        DatagramAddress { gid, qpn, qkey }
    }

    /// Returns the address of a multicast group. All members must use the same Q_Key.
    pub fn group(gid: Gid, qkey: QKey) -> DatagramAddress {
        DatagramAddress {
            gid,
            qpn: Qpn::MULTICAST,
            qkey,
        }
    }
}

/// A datagram address with its route. (`ibv_ah`, and `wr.ud` of `ibv_send_wr`.)
///
/// Posted datagrams keep their own reference to it.
#[derive(Clone, Debug)]
pub struct Destination {
    pub(super) handle: Arc<AddressHandle>,
    pub(super) address: DatagramAddress,
}

impl Destination {
    /// The address.
    pub fn address(&self) -> DatagramAddress {
        self.address
    }

    pub(super) fn driver(&self) -> driver::ah::Destination<'_> {
        driver::ah::Destination {
            handle: &self.handle,
            qpn: self.address.qpn,
            qkey: self.address.qkey,
        }
    }
}
