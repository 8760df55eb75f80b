//! Listeners, and the requests that come to them.

use super::connection::{Connection, Options};
use super::error::Error;
use super::pending::Pending;
use super::port::{Kind, Port, of_connection};
use crate::device::Device;
use crate::qp::PreparedQueuePair;
use crate::wait;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::cm::Offer;
use urxe_driver::cm::channel::ConnectionDetails;
use urxe_driver::cm::resolve::Bound;
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::rc::MAX_RD_ATOMIC;

/// Somebody who listens for connections. Threads may share it; each request goes to one of them.
/// (`rdma_listen`.)
///
/// Its descriptor is readable while requests wait, for use with `poll`, epoll or an async runtime;
/// then [`Listener::try_next`] takes them.
#[derive(Debug)]
pub struct Listener {
    port: Port,
    address: SocketAddr,
}

impl Listener {
    /// Listens at an address of this host, or at all addresses, those to come included, where it is
    /// unspecified. Port 0 is any that is free. (`rdma_bind_addr` and `rdma_listen`.)
    ///
    /// # Errors
    /// [`Error::Cm`] for an address that is no device's and a port that is taken.
    pub fn bind(address: SocketAddr) -> Result<Listener, Error> {
        Self::with_backlog(address, 0)
    }

    /// The same. Beyond `backlog` requests that nobody has taken, more are dropped; their peers ask
    /// again, a few seconds later. 0 stands for 1024, which is the most.
    ///
    /// # Errors
    /// See [`Listener::bind`].
    pub fn with_backlog(address: SocketAddr, backlog: usize) -> Result<Listener, Error> {
        let (port, address) = Port::listening(Kind::Connections, address, backlog)?;
        Ok(Listener { port, address })
    }

    /// Where it listens. (`rdma_get_local_addr`.)
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes the next request, waiting for one. (`rdma_get_request`.)
    ///
    /// # Errors
    /// [`Error::DeviceGone`] when the interface of its address was removed.
    pub fn next(&self) -> Result<Request, Error> {
        wait::endlessly(|| self.next_until(None))
    }

    /// Takes the next request, waiting for at most `timeout`; `None` when none came.
    ///
    /// # Errors
    /// See [`Listener::next`].
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Request>, Error> {
        self.next_until(wait::deadline(timeout))
    }

    /// Takes a request if there is one.
    ///
    /// # Errors
    /// See [`Listener::next`].
    pub fn try_next(&self) -> Result<Option<Request>, Error> {
        self.next_timeout(Duration::ZERO)
    }

    fn next_until(&self, until: Option<Instant>) -> Result<Option<Request>, Error> {
        let asked = self.port.next_request(until)?;
        Ok(asked.map(|asked| Request {
            port: asked.port,
            bound: asked.bound,
            said: of_connection(asked.details),
        }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }
}

/// A request for a connection. Dropping it rejects it.
#[derive(Debug)]
pub struct Request {
    port: Port,
    bound: Bound,
    said: ConnectionDetails,
}

impl Request {
    /// What the peer's program said, with the zeros that fill the message: 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.said.private_data
    }

    /// The address that was asked, with the listener's port. (`rdma_get_local_addr`.)
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.port.id.addresses().source
    }

    /// The peer's address, and its port. (`rdma_get_peer_addr`.)
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.port.id.addresses().destination
    }

    /// The device that it came to, whose queue pair the connection needs.
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// Accepts it, with a queue pair that may have receives already, and waits until the peer is ready
    /// too. The path MTU and the type of service are those that the peer asks for. (`rdma_accept`.)
    ///
    /// # Errors
    /// When the peer has given up meanwhile, or does not answer, or the queue pair is not for this.
    /// The queue pair is gone then.
    pub fn accept(self, qp: PreparedQueuePair, options: &Options) -> Result<Connection, Error> {
        self.start_accepting(qp, options)?.finish()
    }

    /// The same without waiting for the peer.
    ///
    /// # Errors
    /// When the peer has given up meanwhile, or the queue pair is not for this.
    pub fn start_accepting(
        self,
        qp: PreparedQueuePair,
        options: &Options,
    ) -> Result<Pending, Error> {
        qp.check_for(&self.bound)?;
        let most = |wanted: u8, asked: u8| wanted.min(asked).min(MAX_RD_ATOMIC);
        let resources = most(qp.responder_resources(), self.said.responder_resources);
        let depth = most(options.max_rd_atomic, self.said.initiator_depth);
        let offer = Offer {
            responder_resources: resources,
            initiator_depth: depth,
            ..options.offer(&qp)
        };
        options.apply_timeout(&self.port.id)?;
        let qp = qp.connect_by(&self.port.id, Some((resources, depth)))?;
        self.port.id.accept(&offer)?;
        Ok(Pending::accepting(self.port, qp, self.said.private_data))
    }

    /// Rejects it, with at most 148 bytes for the peer's program. (`rdma_reject`.)
    ///
    /// # Errors
    /// When the peer has given up meanwhile, or there are too many bytes.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        let reason = RejectReason::CONSUMER;
        Ok(self.port.id.reject(reason, private_data)?)
    }
}
