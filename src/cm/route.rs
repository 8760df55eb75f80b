//! Routes to peers.

use super::address::first_of;
use super::connection::{Connection, Options, queue_pair};
use super::error::Error;
use super::id::{CmId, Kind};
use super::pending::Pending;
use crate::device::Device;
use crate::qp::PreparedQueuePair;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use urxe_driver::cm::ConnParam;
use urxe_driver::cm::resolve::Bound;
use urxe_proto::rc::MAX_RD_ATOMIC;

/// A resolved route to a peer's address and port.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::cm::Options;
///
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr();
/// # let server = std::thread::spawn(move || listener.accept_blocking());
/// let route = Route::resolve(address)?;
/// let context = route.device().open()?;
/// let cq = context.completion_queue()?;
/// let qp = context.pd().queue_pair(&cq, &cq).max_send_wr(256).build()?;
/// let connection = route.connect(qp, &Options::default())?;
/// assert_eq!(connection.peer_addr(), Some(address));
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct Route {
    id: CmId,
    bound: Bound,
}

impl Route {
    /// Resolves the route with the kernel's routing table. (`rdma_resolve_addr` and
    /// `rdma_resolve_route`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let route = Route::resolve("localhost:7471")?;
    /// println!("through {}", route.device().name());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Address`] if a host name has no address; [`Error::Cm`] if there is no route, or its interface is not a device.
    pub fn resolve(destination: impl ToSocketAddrs) -> Result<Route, Error> {
        Self::find(None, destination)
    }

    /// Resolves the route from a given local address. Port 0 selects a free port.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let route = Route::resolve_from("127.0.0.1:0".parse().unwrap(), "127.0.0.1:7471")?;
    /// assert_eq!(route.local_addr().map(|address| address.ip()), "127.0.0.1".parse().ok());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Route::resolve`].
    pub fn resolve_from(
        source: SocketAddr,
        destination: impl ToSocketAddrs,
    ) -> Result<Route, Error> {
        Self::find(Some(source), destination)
    }

    fn find(source: Option<SocketAddr>, destination: impl ToSocketAddrs) -> Result<Route, Error> {
        let resolve = |destination| CmId::resolved(Kind::Connections, source, destination);
        let (id, bound) = first_of(destination, resolve)?;
        Ok(Route { id, bound })
    }

    /// The local device of the route. The connection needs a queue pair of this device.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let route = Route::resolve("127.0.0.1:7471")?;
    /// let context = route.device().open()?;
    /// let pd = context.pd();
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// The local address and the selected port. (`rdma_get_local_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let route = Route::resolve("127.0.0.1:7471")?;
    /// println!("from {:?}", route.local_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.driver.addresses().source
    }

    /// Connects with a queue pair and a completion queue of its own and the default options.
    fn connect_default_blocking(self) -> Result<Connection, Error> {
        let qp = queue_pair(&self.device())?;
        self.connect(qp, &Options::default())
    }

    /// Connects with a queue pair and a completion queue of its own and the default options.
    pub(super) async fn connect_default(self) -> Result<Connection, Error> {
        let qp = queue_pair(&self.device())?;
        self.start_connecting(qp, &Options::default())?.await
    }

    /// Connects to the listener and waits until it accepts. (`rdma_connect`.)
    ///
    /// `qp` may have posted receives already. If the peer does not respond, the call fails after
    /// 70 seconds.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let server = std::thread::spawn(move || listener.accept_blocking());
    /// let route = Route::resolve(address)?;
    /// # let context = route.device().open()?;
    /// # let cq = context.completion_queue()?;
    /// # let qp = context.pd().queue_pair(&cq, &cq).build()?;
    /// let connection = route.connect(qp, &Options::with_private_data(b"version 1"))?;
    /// connection.disconnect()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Error`]. The queue pair is destroyed on an error.
    pub fn connect(self, qp: PreparedQueuePair, options: &Options) -> Result<Connection, Error> {
        self.start_connecting(qp, options)?.finish()
    }

    /// Connects to the listener without waiting for it.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// # async_io::block_on(async {
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let server = std::thread::spawn(move || listener.accept_blocking());
    /// let route = Route::resolve(address)?;
    /// # let context = route.device().open()?;
    /// # let cq = context.completion_queue()?;
    /// # let qp = context.pd().queue_pair(&cq, &cq).build()?;
    /// let connection = route.start_connecting(qp, &Options::default())?.await?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// See [`Error`]: the queue pair does not fit, or there is too much private data.
    pub fn start_connecting(
        self,
        qp: PreparedQueuePair,
        options: &Options,
    ) -> Result<Pending, Error> {
        qp.check_for(&self.bound)?;
        let conn_param = ConnParam {
            responder_resources: qp.responder_resources().min(MAX_RD_ATOMIC),
            initiator_depth: options.max_rd_atomic.min(MAX_RD_ATOMIC),
            ..options.conn_param(&qp)
        };
        options.apply_timeout(&self.id.driver)?;
        self.id.driver.limit_mtu(qp.path_mtu());
        self.id.driver.mark_path(options.type_of_service);
        self.id.driver.connect(&conn_param)?;
        Ok(Pending::connecting(self.id, qp))
    }
}

/// Connects to an address and port, with a queue pair and a completion queue of its own and the
/// default options.
///
/// The queue pair has the default sizes; see [`Connection::queue_pair`]. To choose them, use
/// [`Route::resolve`] and [`Route::start_connecting`], whose result is a future.
///
/// A host name is resolved by a blocking call of the system's resolver; an IP address needs none.
///
/// ```
/// # fn main() -> urxe::Result<()> { async_io::block_on(async {
/// use urxe::cm::Listener;
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// let server = std::thread::spawn(move || async_io::block_on(listener.accept()));
/// let client = urxe::connect(address).await?;
/// assert_eq!(client.local_addr(), server.join().unwrap()?.peer_addr());
/// # Ok(())
/// # })}
/// ```
///
/// # Errors
/// See [`Route::resolve`] and [`Route::connect`], and the error of the reactor.
pub async fn connect(address: impl ToSocketAddrs) -> Result<Connection, Error> {
    Route::resolve(address)?.connect_default().await
}

/// Connects like [`connect`], and waits in the calling thread.
///
/// ```
/// use std::thread;
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// let server = thread::spawn(move || -> urxe::Result<Completion> {
///     let connection = listener.accept_blocking()?;
///     let qp = connection.queue_pair();
///     qp.post_receive(ReceiveRequest::into(qp.pd().buffer(64)?))?;
///     Ok(qp.recv_cq().wait()?)
/// });
/// let connection = urxe::connect_blocking(address)?;
/// let qp = connection.queue_pair();
/// qp.post_send(SendRequest::send(b"hello"))?;
/// qp.send_cq().wait()?.result?;
/// assert_eq!(server.join().unwrap()?.data()?, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`Route::resolve`] and [`Route::connect`].
pub fn connect_blocking(address: impl ToSocketAddrs) -> Result<Connection, Error> {
    Route::resolve(address)?.connect_default_blocking()
}
