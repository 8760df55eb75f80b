//! Multicast: a UD queue pair may be attached to any number of groups (10.5).
//!
//! Every attached queue pair receives each datagram for the group, its own included (10.5.2.2),
//! unless it was created with `block_own_multicast`.

use crate::device::Device;
use crate::lock_order::{Ordered, Rank};
use crate::path;
use crate::queues::qp::Qp;
use crate::sync::lock;
use std::net::IpAddr;
use std::sync::Arc;
use urxe_net::{LocalAddress, OpenError};
use urxe_proto::ids::Gid;
use urxe_proto::qp::QpType;

/// An error in attaching a queue pair to a group, or detaching it.
#[derive(Debug, thiserror::Error)]
pub enum MulticastError {
    /// Only UD queue pairs support multicast: EINVAL.
    #[error("only datagram queue pairs (UD) can be in multicast groups")]
    Service,
    /// The GID is not a multicast GID: EINVAL.
    #[error(
        "{0} is no multicast GID: those are ff00::/8, and ::ffff:a.b.c.d with a from 224 to 239"
    )]
    NotMulticast(Gid),
    /// The queue pair is not attached to this group: EINVAL.
    #[error("the queue pair is not attached to {0}")]
    NotAttached(Gid),
    /// The device has no address of the group's IP version: EADDRNOTAVAIL.
    #[error("{device} has no {kind} address, which a group of that kind needs")]
    NoAddress {
        /// The device.
        device: String,
        /// "IPv4" or "IPv6".
        kind: &'static str,
    },
    /// The device's sockets cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl MulticastError {
    /// The errno that verbs return.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Service | Self::NotMulticast(_) | Self::NotAttached(_) => libc::EINVAL,
            Self::NoAddress { .. } => libc::EADDRNOTAVAIL,
            Self::Open(error) => error.errno(),
        }
    }
}

impl Qp {
    /// Attaches the queue pair to a multicast group (11.3.1). A second attachment to the same group
    /// does nothing.
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn attach(self: &Arc<Self>, group: Gid) -> Result<(), MulticastError> {
        let ip = self.group_address(group)?;
        let from = source(&self.device, ip)?;
        let mut groups = Ordered::take(Rank::QpGroups, || lock(&self.groups));
        if groups.contains(&group) {
            return Ok(());
        }
        path::get().attach(self, from, (ip, self.device.interface_index()))?;
        groups.push(group);
        Ok(())
    }

    /// Detaches the queue pair from a multicast group (11.3.2). After the return it receives
    /// nothing more for the group.
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn detach(&self, group: Gid) -> Result<(), MulticastError> {
        let ip = self.group_address(group)?;
        let mut groups = Ordered::take(Rank::QpGroups, || lock(&self.groups));
        let Some(at) = groups.iter().position(|known| *known == group) else {
            return Err(MulticastError::NotAttached(group));
        };
        path::get().detach(self, (ip, self.device.interface_index()));
        groups.swap_remove(at);
        Ok(())
    }

    /// The multicast groups that the queue pair is attached to.
    pub fn groups(&self) -> Vec<Gid> {
        lock(&self.groups).clone()
    }

    /// Detaches the queue pair from all groups.
    pub(super) fn leave_groups(&self) {
        let mut groups = Ordered::take(Rank::QpGroups, || lock(&self.groups));
        for group in groups.drain(..) {
            path::get().detach(self, (group.to_ip(), self.device.interface_index()));
        }
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

/// Returns an address of the device with the group's IP version.
fn source(device: &Device, group: IpAddr) -> Result<LocalAddress, MulticastError> {
    let found = device
        .sources()
        .find(|address| address.ip().is_ipv4() == group.is_ipv4());
    found.ok_or_else(|| MulticastError::NoAddress {
        device: device.name().to_owned(),
        kind: if group.is_ipv4() { "IPv4" } else { "IPv6" },
    })
}
