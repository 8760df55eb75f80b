//! Multicast: a datagram queue pair may be attached to any number of groups (10.5).
//!
//! Each queue pair that is attached to a group gets every datagram for it, that of the queue pair
//! itself included (10.5.2.2), unless it was made not to.

use super::Qp;
use crate::device::Device;
use crate::engine;
use crate::event_queue::lock;
use std::net::IpAddr;
use std::sync::Arc;
use urxe_net::{LocalAddress, OpenError};
use urxe_proto::ids::Gid;
use urxe_proto::qp::QpType;
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Packet;

/// Why a queue pair cannot be attached to a group, or detached.
#[derive(Debug, thiserror::Error)]
pub enum MulticastError {
    /// Only datagrams are multicast: EINVAL.
    #[error("only datagram queue pairs (UD) can be in multicast groups")]
    Service,
    /// The GID names no group: EINVAL.
    #[error(
        "{0} is no multicast GID: those are ff00::/8, and ::ffff:a.b.c.d with a from 224 to 239"
    )]
    NotMulticast(Gid),
    /// It is not attached to this group: EINVAL.
    #[error("the queue pair is not attached to {0}")]
    NotAttached(Gid),
    /// The device has no address of the group's kind: EADDRNOTAVAIL.
    #[error("{device} has no {kind} address, which a group of that kind needs")]
    NoAddress {
        /// The device.
        device: String,
        /// IPv4 or IPv6.
        kind: &'static str,
    },
    /// The network part cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl MulticastError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Service | Self::NotMulticast(_) | Self::NotAttached(_) => libc::EINVAL,
            Self::NoAddress { .. } => libc::EADDRNOTAVAIL,
            Self::Open(error) => error.errno(),
        }
    }
}

impl Qp {
    /// Attaches it to a multicast group (11.3.1). Attaching it once more does nothing.
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn attach(self: &Arc<Self>, group: Gid) -> Result<(), MulticastError> {
        let ip = self.group_address(group)?;
        let from = source(&self.device, ip)?;
        let mut groups = lock(&self.groups);
        if groups.contains(&group) {
            return Ok(());
        }
        engine::get().attach(self, from, (ip, self.device.interface_index()))?;
        groups.push(group);
        Ok(())
    }

    /// Detaches it from a multicast group (11.3.2): when this returns, it gets nothing more from there.
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn detach(&self, group: Gid) -> Result<(), MulticastError> {
        let ip = self.group_address(group)?;
        let mut groups = lock(&self.groups);
        let Some(at) = groups.iter().position(|known| *known == group) else {
            return Err(MulticastError::NotAttached(group));
        };
        engine::get().detach(self, (ip, self.device.interface_index()));
        groups.swap_remove(at);
        Ok(())
    }

    /// The multicast groups that it is attached to.
    pub fn groups(&self) -> Vec<Gid> {
        lock(&self.groups).clone()
    }

    /// Detaches it from all groups.
    pub(super) fn leave_groups(&self) {
        for group in lock(&self.groups).drain(..) {
            engine::get().detach(self, (group.to_ip(), self.device.interface_index()));
        }
    }

    /// Whether a datagram for a group that it is attached to is its own, and it was made not to get these. Other
    /// hosts have queue pairs of the same number, so the address must be this host's, too.
    pub(crate) fn blocks(&self, network: &NetworkHeader, packet: &Packet<'_>) -> bool {
        let is_from_here = |qpn| {
            qpn == self.qpn
                && self
                    .device
                    .sources()
                    .any(|address| Gid::from_ip(address.ip()) == network.source)
        };
        self.block_own_multicast && packet.header.deth.is_some_and(|d| is_from_here(d.src_qp))
    }

    fn group_address(&self, group: Gid) -> Result<IpAddr, MulticastError> {
        if self.service != QpType::Ud {
            return Err(MulticastError::Service);
        }
        match group.to_ip() {
            ip if ip.is_multicast() => Ok(ip),
            _ => Err(MulticastError::NotMulticast(group)),
        }
    }
}

/// An address of the device of the group's kind.
fn source(device: &Device, group: IpAddr) -> Result<LocalAddress, MulticastError> {
    let found = device
        .sources()
        .find(|address| address.ip().is_ipv4() == group.is_ipv4());
    found.ok_or_else(|| MulticastError::NoAddress {
        device: device.name().to_owned(),
        kind: if group.is_ipv4() { "IPv4" } else { "IPv6" },
    })
}
