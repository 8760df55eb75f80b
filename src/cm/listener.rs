//! Listeners and incoming connection requests.

use super::address::first_of;
use super::connection::{Connection, Options, queue_pair};
use super::error::Error;
use super::id::{CmId, Kind, connection_details};
use super::pending::Pending;
use crate::device::Device;
use crate::qp::PreparedQueuePair;
use crate::reactor::Reactor;
use crate::wait;
use std::future::poll_fn;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::cm::ConnParam;
use urxe_driver::cm::channel::ConnectionDetails;
use urxe_driver::cm::resolve::Bound;
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::rc::MAX_RD_ATOMIC;

/// A listener for connections. Threads may share it; each request is returned to one of them.
/// (`rdma_listen`.)
///
/// The descriptor is readable while requests are pending, for use with `poll`, epoll or an async
/// runtime. [`Listener::try_next`] then returns them.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::cm::Options;
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// let client = std::thread::spawn(move || urxe::connect_blocking(address));
///
/// let request = listener.next()?;
/// let context = request.device().open()?;
/// let cq = context.completion_queue()?;
/// let qp = context.pd().queue_pair(&cq, &cq).build()?;
/// let connection = request.accept(qp, &Options::default())?;
/// assert_eq!(connection.peer_addr(), client.join().unwrap()?.local_addr());
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    address: SocketAddr,
}

impl Listener {
    /// Listens on an address of this host. (`rdma_bind_addr` and `rdma_listen`.)
    ///
    /// An unspecified address stands for all addresses, including those added later. Port 0
    /// selects a free port. A host name stands for the first of its addresses that can be used.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::{CmError, Error};
    ///
    /// let listener = Listener::bind("0.0.0.0:0")?;
    /// println!("listening on {}", listener.local_addr());
    /// // The address of another host:
    /// let error = Listener::bind("192.0.2.1:0").unwrap_err();
    /// assert!(matches!(error, Error::Cm(CmError::Resolve(_))), "{error:?}");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Address`] if a host name has no address; [`Error::Cm`] if the address belongs to no
    /// device or the port is in use.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Listener, Error> {
        Self::with_backlog(address, 0)
    }

    /// Listens like [`Listener::bind`], with a limit on pending requests.
    ///
    /// While `backlog` requests are pending, further requests are dropped; their peers retry after
    /// a few seconds. The maximum is 1024, which 0 also stands for.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let listener = Listener::with_backlog("127.0.0.1:0", 16)?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Listener::bind`].
    pub fn with_backlog(address: impl ToSocketAddrs, backlog: usize) -> Result<Listener, Error> {
        let listen = |address| CmId::listening(Kind::Connections, address, backlog);
        let (id, address) = first_of(address, listen)?;
        Ok(Listener { id, address })
    }

    /// The address and port it listens on. (`rdma_get_local_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// assert_ne!(listener.local_addr().port(), 0);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes the next request, and waits for one if there is none. (`rdma_get_request`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// println!("a request from {:?}", request.peer_addr());
    /// request.reject(b"not now")?;
    /// assert!(client.join().unwrap().is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceGone`] if the interface of its address was removed.
    pub fn next(&self) -> Result<Request, Error> {
        wait::without_deadline(|| self.next_until(None))
    }

    /// Takes the next request, waiting for at most `timeout`; `None` if none arrives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::time::Duration;
    ///
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// assert!(listener.next_timeout(Duration::from_millis(1))?.is_none());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Listener::next`].
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Request>, Error> {
        self.next_until(wait::deadline(timeout))
    }

    /// Takes the next request; `None` if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// assert!(listener.try_next()?.is_none());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Listener::next`].
    pub fn try_next(&self) -> Result<Option<Request>, Error> {
        self.next_timeout(Duration::ZERO)
    }

    /// Takes the next request, and waits for one if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next_request().await?;
    /// request.reject(b"not now")?;
    /// assert!(client.join().unwrap().is_err());
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// See [`Listener::next`], and the error of the reactor.
    pub async fn next_request(&self) -> Result<Request, Error> {
        poll_fn(|context| self.id.poll_take(context, || self.try_next())).await
    }

    /// Accepts the next connection, with a queue pair and a completion queue of its own and the
    /// default options.
    ///
    /// The queue pair has the default sizes; see [`Connection::queue_pair`]. To choose them, use
    /// [`Listener::next_request`] and [`Request::start_accepting`].
    ///
    /// Several tasks may accept at a time, so a slow peer delays only one of them. Dropping the
    /// future during the handshake rejects the connection.
    ///
    /// ```
    /// # fn main() -> urxe::Result<()> { async_io::block_on(async {
    /// use urxe::prelude::*;
    ///
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || async_io::block_on(urxe::connect(address)));
    /// let server = listener.accept().await?;
    /// assert_eq!(server.peer_addr(), client.join().unwrap()?.local_addr());
    /// # Ok(())
    /// # })}
    /// ```
    ///
    /// # Errors
    /// See [`Listener::next`] and [`Request::accept`], and the error of the reactor.
    pub async fn accept(&self) -> Result<Connection, Error> {
        let request = self.next_request().await?;
        let qp = queue_pair(&request.device())?;
        request.start_accepting(qp, &Options::default())?.await
    }

    /// Accepts the next connection like [`Listener::accept`], and waits in the calling thread.
    ///
    /// [`connect_blocking`](crate::connect_blocking) has an example.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let connection = listener.accept_blocking()?;
    /// assert_eq!(connection.local_addr(), client.join().unwrap()?.peer_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Listener::next`] and [`Request::accept`].
    pub fn accept_blocking(&self) -> Result<Connection, Error> {
        let request = self.next()?;
        let qp = queue_pair(&request.device())?;
        request.accept(qp, &Options::default())
    }

    /// Selects the reactor for the futures of this object; see [`reactor`](crate::reactor).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// listener.use_reactor(AsyncIo);
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// listener.accept().await?;
    /// client.join().unwrap()?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        self.id.use_reactor(Arc::new(reactor));
    }

    fn next_until(&self, until: Option<Instant>) -> Result<Option<Request>, Error> {
        let incoming = self.id.next_request(until)?;
        Ok(incoming.map(|incoming| Request {
            id: incoming.id,
            bound: incoming.bound,
            details: connection_details(incoming.details),
        }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// An incoming connection request. Dropping it rejects it.
///
/// ```
/// # use urxe::prelude::*;
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr();
/// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
/// let request = listener.next()?;
/// println!("{:?} asks for {:?}", request.peer_addr(), request.local_addr());
/// // Dropping a request rejects it.
/// drop(request);
/// assert!(client.join().unwrap().is_err());
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct Request {
    id: CmId,
    bound: Bound,
    details: ConnectionDetails,
}

impl Request {
    /// The peer's private data, 56 bytes; unused bytes at the end are zero.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// assert!(request.private_data().iter().all(|byte| *byte == 0));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn private_data(&self) -> &[u8] {
        &self.details.private_data
    }

    /// The address that the peer connects to, with the listener's port. (`rdma_get_local_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// assert_eq!(request.local_addr(), Some(listener.local_addr()));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.driver.addresses().source
    }

    /// The peer's address and port. (`rdma_get_peer_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// println!("a request from {:?}", request.peer_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.driver.addresses().destination
    }

    /// The device that received the request. The connection needs a queue pair of this device.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// let context = request.device().open()?;
    /// let pd = context.pd();
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// Accepts the request and waits for the peer's confirmation (RTU). (`rdma_accept`.)
    ///
    /// `qp` may have posted receives already. The path MTU and the type of service are those of the
    /// request.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// let context = request.device().open()?;
    /// let cq = context.completion_queue()?;
    /// let qp = context.pd().queue_pair(&cq, &cq).max_recv_wr(256).build()?;
    /// let connection = request.accept(qp, &Options::default())?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Error`]: the peer has given up or does not respond, or the queue pair does not fit.
    /// The queue pair is destroyed on an error.
    pub fn accept(self, qp: PreparedQueuePair, options: &Options) -> Result<Connection, Error> {
        self.start_accepting(qp, options)?.finish()
    }

    /// Accepts the request without waiting for the peer.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// # async_io::block_on(async {
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// let context = request.device().open()?;
    /// let cq = context.completion_queue()?;
    /// let qp = context.pd().queue_pair(&cq, &cq).build()?;
    /// let connection = request.start_accepting(qp, &Options::default())?.await?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// See [`Error`]: the peer has given up, or the queue pair does not fit.
    pub fn start_accepting(
        self,
        qp: PreparedQueuePair,
        options: &Options,
    ) -> Result<Pending, Error> {
        qp.check_for(&self.bound)?;
        let most = |wanted: u8, requested: u8| wanted.min(requested).min(MAX_RD_ATOMIC);
        let resources = most(qp.responder_resources(), self.details.responder_resources);
        let depth = most(options.max_rd_atomic, self.details.initiator_depth);
        let conn_param = ConnParam {
            responder_resources: resources,
            initiator_depth: depth,
            ..options.conn_param(&qp)
        };
        options.apply_timeout(&self.id.driver)?;
        let qp = qp.connect_by(&self.id.driver, Some((resources, depth)))?;
        self.id.driver.accept(&conn_param)?;
        Ok(Pending::accepting(self.id, qp, self.details.private_data))
    }

    /// Rejects the request, with at most 148 bytes of private data. (`rdma_reject`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Error;
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// let request = listener.next()?;
    /// request.reject(b"not now")?;
    /// match client.join().unwrap() {
    ///     Err(Error::Rejected { private_data, .. }) => {
    ///         assert!(private_data.starts_with(b"not now"));
    ///     }
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Error`]: the peer has given up, or there is too much private data.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        let reason = RejectReason::CONSUMER;
        Ok(self.id.driver.reject(reason, private_data)?)
    }
}
