//! The multicast groups that an identifier has joined (A17.9.4).
//!
//! On RoCE the IP address of the group is its GID. The socket joins the group when a queue pair is
//! attached to it.

use super::channel::{DatagramDetails, Details, EventKind};
use super::error::CmError;
pub use super::group::Group;
use super::id::{Id, Service, State, UDP_QKEY};
use super::port_space::PortSpace;
use super::resolve::Bound;
use crate::event_queue::AckCount;
use crate::sync::lock;
use std::net::SocketAddr;
use std::sync::Arc;
use urxe_net::DEFAULT_TTL;
use urxe_proto::ids::Qpn;
use urxe_proto::qp::AddressVector;

impl Id {
    /// Joins a group. The event [`EventKind::MulticastJoin`] follows, with the address vector for
    /// sending to the group. The receiver of the event attaches the queue pair to the group.
    ///
    /// # Errors
    /// See [`CmError`].
    pub fn join(&self, address: SocketAddr, send_only: bool, tag: usize) -> Result<(), CmError> {
        let mut inner = lock(&self.inner);
        inner.expect("joining a group", &[State::Bound, State::AddressResolved])?;
        let bound = inner.bound.as_ref().ok_or(CmError::NoDevice)?;
        if !address.ip().is_multicast() || self.service() != Service::Datagram {
            return Err(CmError::NotMulticast(address.ip()));
        }
        if self.space() == PortSpace::IpoIb {
            return Err(CmError::NoIpoib);
        }
        let group = Arc::new(Group {
            address,
            send_only,
            tag,
            acks: AckCount::default(),
        });
        let datagram = DatagramDetails {
            private_data: Vec::new(),
            av: AddressVector {
                dgid: group.gid(),
                sgid_index: bound.gid_index,
                hop_limit: DEFAULT_TTL,
                traffic_class: inner.options.type_of_service,
                is_global: true,
                port: Bound::PORT,
                ..AddressVector::default()
            },
            qpn: Qpn::MULTICAST,
            qkey: UDP_QKEY,
        };
        inner.groups.push(Arc::clone(&group));
        let details = Details::Multicast(group, Box::new(datagram));
        self.raise(EventKind::MulticastJoin, 0, details);
        Ok(())
    }

    /// Leaves a group. The caller detaches the queue pair that it has attached, and waits until the
    /// group's events are acknowledged.
    ///
    /// # Errors
    /// [`CmError::NotJoined`] if the identifier has not joined the group.
    pub fn leave(&self, address: SocketAddr) -> Result<Arc<Group>, CmError> {
        let mut inner = lock(&self.inner);
        let joined = inner
            .groups
            .iter()
            .position(|group| group.address == address);
        let at = joined.ok_or(CmError::NotJoined(address.ip()))?;
        let group = inner.groups.remove(at);
        drop(inner);
        let channel = Arc::clone(&lock(&self.channel));
        channel.extract_if(|event| {
            matches!(&event.details, Details::Multicast(other, _) if Arc::ptr_eq(other, &group))
        });
        Ok(group)
    }
}
