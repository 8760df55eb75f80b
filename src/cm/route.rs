//! The way to a peer.

use super::connection::{Connection, Options};
use super::error::Error;
use super::pending::Pending;
use super::port::{Kind, Port};
use crate::device::Device;
use crate::qp::PreparedQueuePair;
use std::net::SocketAddr;
use std::sync::Arc;
use urxe_driver::cm::Offer;
use urxe_driver::cm::resolve::Bound;
use urxe_proto::rc::MAX_RD_ATOMIC;

/// The way to a peer's address and port: the device, and the path from there.
#[derive(Debug)]
pub struct Route {
    port: Port,
    bound: Bound,
}

impl Route {
    /// Finds the way that the kernel's routes tell. (`rdma_resolve_addr` and `rdma_resolve_route`.)
    ///
    /// # Errors
    /// [`Error::Cm`] where there is none, or it begins at an interface that is no device.
    pub fn resolve(destination: SocketAddr) -> Result<Route, Error> {
        Self::find(None, destination)
    }

    /// The same, from an address of this host; port 0 is any that is free.
    ///
    /// # Errors
    /// See [`Route::resolve`].
    pub fn resolve_from(source: SocketAddr, destination: SocketAddr) -> Result<Route, Error> {
        Self::find(Some(source), destination)
    }

    fn find(source: Option<SocketAddr>, destination: SocketAddr) -> Result<Route, Error> {
        let (port, bound) = Port::on_the_way(Kind::Connections, source, destination)?;
        Ok(Route { port, bound })
    }

    /// The device at which it begins, whose queue pair the connection needs.
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// Our address, and the port that was chosen. (`rdma_get_local_addr`.)
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.port.id.addresses().source
    }

    /// Connects to who listens there, with a queue pair that may have receives already, and waits until
    /// the peer has accepted: for 70 seconds where nobody answers. (`rdma_connect`.)
    ///
    /// # Errors
    /// See [`Error`]. The queue pair is gone then.
    pub fn connect(self, qp: PreparedQueuePair, options: &Options) -> Result<Connection, Error> {
        self.start_connecting(qp, options)?.finish()
    }

    /// The same without waiting for the peer.
    ///
    /// # Errors
    /// When the queue pair is not for this, or private data is too long.
    pub fn start_connecting(
        self,
        qp: PreparedQueuePair,
        options: &Options,
    ) -> Result<Pending, Error> {
        qp.check_for(&self.bound)?;
        let offer = Offer {
            responder_resources: qp.responder_resources().min(MAX_RD_ATOMIC),
            initiator_depth: options.max_rd_atomic.min(MAX_RD_ATOMIC),
            ..options.offer(&qp)
        };
        options.apply_timeout(&self.port.id)?;
        self.port.id.limit_mtu(qp.path_mtu());
        self.port.id.mark_path(options.type_of_service);
        self.port.id.connect(&offer)?;
        Ok(Pending::connecting(self.port, qp))
    }
}
