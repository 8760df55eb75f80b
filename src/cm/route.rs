//! The way to a peer.

use super::connection::{Connection, Options};
use super::error::Error;
use super::port::{Port, said};
use crate::device::Device;
use crate::qp::PreparedQueuePair;
use std::net::SocketAddr;
use std::sync::Arc;
use urxe_driver::cm::resolve::Bound;
use urxe_driver::cm::{CmError, EventKind, Offer};
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
        let port = Port::new()?;
        port.id.resolve_address(source, destination)?;
        let event = port.wait()?;
        if event.kind != EventKind::AddressResolved {
            return Err(Error::of(event));
        }
        port.id.resolve_route()?;
        let event = port.wait()?;
        if event.kind != EventKind::RouteResolved {
            return Err(Error::of(event));
        }
        let bound = port.id.addresses().bound.ok_or(CmError::NoDevice)?;
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
        qp.check_for(&self.bound)?;
        let offer = Offer {
            responder_resources: qp.responder_resources().min(MAX_RD_ATOMIC),
            initiator_depth: options.max_rd_atomic.min(MAX_RD_ATOMIC),
            ..options.offer(&qp)
        };
        self.port.id.limit_mtu(qp.path_mtu());
        self.port.id.connect(&offer)?;
        let event = self.port.wait()?;
        if event.kind != EventKind::ConnectResponse {
            return Err(Error::of(event));
        }
        let said = said(event);
        let qp = qp.connect_by(&self.port.id, None)?;
        self.port.id.ready()?;
        Ok(Connection::new(self.port, qp, said.private_data))
    }
}
