//! Established connections, and the parameters that the two ends exchange.

use super::error::Error;
use super::id::{CmId, connection_details, service_details};
use crate::device::Device;
use crate::qp::{PreparedQueuePair, QueuePair};
use crate::reactor::Reactor;
use crate::wait;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::cm::resolve::Bound;
use urxe_driver::cm::{self, ConnParam, EventKind, Id};
use urxe_driver::qp::ModifyError;
use urxe_proto::cm::wire::{RejectReason, SidrStatus};
use urxe_proto::qp::{QpState, QpType};

/// The parameters of a connection request or its acceptance. (`rdma_conn_param`.)
///
/// ```
/// let options = urxe::cm::Options::default().private_data(b"hello").retry_cnt(3);
/// assert_eq!(options.retry_cnt, 3);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Data for the peer's program: at most 56 bytes in a request, 196 in an acceptance.
    /// (Default: empty.)
    pub private_data: Vec<u8>,
    /// The maximum of outstanding READs and atomics, 0 to 128. The peer's responder resources limit
    /// it too. (`initiator_depth`; default 16.)
    pub max_rd_atomic: u8,
    /// Retransmissions without a response, 0 to 7, at both ends. The connecting end sets it.
    /// (Default 7.)
    pub retry_cnt: u8,
    /// The peer's retries while no receive is posted here: 0 to 6; 7 is unlimited. (Default 7.)
    pub rnr_retry: u8,
    /// The IPv4 type of service or IPv6 traffic class of both ends' packets. The connecting end
    /// sets it. (`RDMA_OPTION_ID_TOS`; default 0.)
    pub type_of_service: u8,
    /// The ACK timeout of this end: 4.096 us x 2^n for n from 1 to 31; 0 disables it. `None`
    /// derives it from the ACK delays that both ends announce. (`RDMA_OPTION_ID_ACK_TIMEOUT`.)
    pub ack_timeout: Option<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            private_data: Vec::new(),
            max_rd_atomic: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            type_of_service: 0,
            ack_timeout: None,
        }
    }
}

impl Options {
    /// Returns the default options with private data.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// let options = Options::with_private_data(b"version 1");
    /// assert_eq!(options.private_data, b"version 1");
    /// ```
    pub fn with_private_data(private_data: &[u8]) -> Options {
        Options {
            private_data: private_data.to_vec(),
            ..Options::default()
        }
    }

    /// Sets [`Options::private_data`](#structfield.private_data).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// let options = Options::default().retry_cnt(3).private_data(b"version 1");
    /// assert_eq!(options.private_data, b"version 1");
    /// ```
    pub fn private_data(mut self, private_data: &[u8]) -> Self {
        self.private_data = private_data.to_vec();
        self
    }

    /// Sets [`Options::max_rd_atomic`](#structfield.max_rd_atomic).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// assert_eq!(Options::default().max_rd_atomic(4).max_rd_atomic, 4);
    /// ```
    pub fn max_rd_atomic(mut self, max_rd_atomic: u8) -> Self {
        self.max_rd_atomic = max_rd_atomic;
        self
    }

    /// Sets [`Options::retry_cnt`](#structfield.retry_cnt).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// assert_eq!(Options::default().retry_cnt(3).retry_cnt, 3);
    /// ```
    pub fn retry_cnt(mut self, retry_cnt: u8) -> Self {
        self.retry_cnt = retry_cnt;
        self
    }

    /// Sets [`Options::rnr_retry`](#structfield.rnr_retry).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// assert_eq!(Options::default().rnr_retry(0).rnr_retry, 0);
    /// ```
    pub fn rnr_retry(mut self, rnr_retry: u8) -> Self {
        self.rnr_retry = rnr_retry;
        self
    }

    /// Sets [`Options::type_of_service`](#structfield.type_of_service).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// // The DSCP of expedited forwarding, 46, is in the upper six bits.
    /// assert_eq!(Options::default().type_of_service(46 << 2).type_of_service, 184);
    /// ```
    pub fn type_of_service(mut self, type_of_service: u8) -> Self {
        self.type_of_service = type_of_service;
        self
    }

    /// Sets [`Options::ack_timeout`](#structfield.ack_timeout).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    ///
    /// // 4.096 us x 2^10, which is 4.2 ms.
    /// assert_eq!(Options::default().ack_timeout(10).ack_timeout, Some(10));
    /// ```
    pub fn ack_timeout(mut self, timeout: u8) -> Self {
        self.ack_timeout = Some(timeout);
        self
    }

    /// Sets the options that an identifier needs before it is connected.
    pub(super) fn apply_timeout(&self, id: &Id) -> Result<(), Error> {
        match self.ack_timeout {
            Some(timeout) => Ok(id.set_ack_timeout(timeout)?),
            None => Ok(()),
        }
    }

    /// The parameters for a queue pair, without the depths of READs and atomics.
    pub(super) fn conn_param(&self, qp: &PreparedQueuePair) -> ConnParam {
        ConnParam {
            private_data: self.private_data.clone(),
            qpn: qp.qpn(),
            srq: qp.has_shared_receives(),
            retry_count: self.retry_cnt,
            rnr_retry_count: self.rnr_retry,
            ..ConnParam::default()
        }
    }
}

/// An event of a connection. (`rdma_cm_event`.)
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::cm::Event;
///
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr();
/// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
/// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
/// client.disconnect()?;
/// match server.next()? {
///     Event::Disconnected => println!("the client has disconnected"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The connection has ended: the peer disconnected, confirmed the disconnection, or did not
    /// confirm it in time. The queue pair is in the error state.
    Disconnected,
    /// The connection has ended, and none of its packets can still arrive.
    TimeWaitExit,
    /// The interface was removed.
    DeviceRemoved,
    /// The interface has a new link-layer address; the peer may have to resolve it again.
    LinkAddressChanged,
}

/// A connection. Dropping it disconnects.
///
/// The descriptor is readable while events are pending, for use with `poll`, epoll or an async
/// runtime. [`Connection::try_next`] then returns them.
///
/// ```
/// # use urxe::prelude::*;
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr();
/// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
/// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
/// let (a, b) = (client.queue_pair(), server.queue_pair());
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// a.post_send(SendRequest::send(b"hello"))?;
/// assert_eq!(b.recv_cq().wait()?.data()?, b"hello");
/// // The server learns that the client is gone.
/// drop(client);
/// assert_eq!(server.next()?, urxe::cm::Event::Disconnected);
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct Connection {
    /// Dropped before the queue pair, so that the peer receives the DREQ first.
    id: CmId,
    qp: QueuePair,
    private_data: Vec<u8>,
}

impl Connection {
    pub(super) fn new(id: CmId, qp: QueuePair, private_data: Vec<u8>) -> Connection {
        Connection {
            id,
            qp,
            private_data,
        }
    }

    /// The queue pair of the connection.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// let qp = server.queue_pair();
    /// qp.post_receive(ReceiveRequest::into(qp.pd().buffer(64)?))?;
    /// client.queue_pair().post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(qp.recv_cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn queue_pair(&self) -> &QueuePair {
        &self.qp
    }

    /// The private data of the peer's request (56 bytes) or acceptance (196 bytes).
    ///
    /// Unused bytes at the end are zero.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// // Without private data all bytes are zero.
    /// assert!(client.private_data().iter().all(|byte| *byte == 0));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The local address and port. (`rdma_get_local_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// assert_eq!(server.local_addr(), client.peer_addr());
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
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// println!("a connection from {:?}", server.peer_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.driver.addresses().destination
    }

    /// Takes the next event, and waits for one if there is none. (`rdma_get_cm_event` and
    /// `rdma_ack_cm_event`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Event;
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// drop(client);
    /// assert_eq!(server.next()?, Event::Disconnected);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn next(&self) -> Result<Event, Error> {
        wait::without_deadline(|| self.next_until(None))
    }

    /// Takes the next event, waiting for at most `timeout`; `None` if none arrives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::time::Duration;
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// assert_eq!(server.next_timeout(Duration::from_millis(1))?, None);
    /// drop(client);
    /// assert!(server.next_timeout(Duration::from_secs(60))?.is_some());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        self.next_until(wait::deadline(timeout))
    }

    /// Takes the next event; `None` if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// assert_eq!(server.try_next()?, None);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn try_next(&self) -> Result<Option<Event>, Error> {
        self.next_timeout(Duration::ZERO)
    }

    /// Takes the next event, and waits for one if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Event;
    ///
    /// # async_io::block_on(async {
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// drop(client);
    /// assert_eq!(server.next_event().await?, Event::Disconnected);
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// See [`Connection::next`], and the error of the reactor.
    pub async fn next_event(&self) -> Result<Event, Error> {
        poll_fn(|context| self.id.poll_take(context, || self.try_next())).await
    }

    /// Selects the reactor for the futures of this object; see [`reactor`](crate::reactor).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// server.use_reactor(AsyncIo);
    /// drop(client);
    /// server.next_event().await?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        self.id.use_reactor(Arc::new(reactor));
    }

    fn next_until(&self, until: Option<Instant>) -> Result<Option<Event>, Error> {
        while let Some(event) = self.id.next(until)? {
            let event = match event.kind {
                // A peer that rejects after it accepted ends the connection, too.
                EventKind::Disconnected | EventKind::Rejected => {
                    // The peer responds to nothing from now on. An error means that the queue pair
                    // is in the error state already.
                    let _ = self.qp.fail();
                    Event::Disconnected
                }
                EventKind::TimewaitExit => Event::TimeWaitExit,
                EventKind::DeviceRemoval => Event::DeviceRemoved,
                EventKind::AddressChange => Event::LinkAddressChanged,
                _ => continue,
            };
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// Ends the connection: outstanding work requests complete as flushed. (`rdma_disconnect`.)
    ///
    /// The peer's confirmation arrives as [`Event::Disconnected`]. After a disconnection by the
    /// peer, this call confirms it.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Event;
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let client = std::thread::spawn(move || urxe::connect_blocking(address));
    /// # let (server, client) = (listener.accept_blocking()?, client.join().unwrap()?);
    /// client.disconnect()?;
    /// assert_eq!(server.next()?, Event::Disconnected);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Modify`] if the queue pair cannot enter the error state.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.qp.fail()?;
        Ok(self.id.driver.disconnect()?)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Error {
    /// The error for an event other than the expected one.
    pub(super) fn of(event: cm::Event) -> Error {
        match event.kind {
            EventKind::Rejected => Error::Rejected {
                reason: RejectReason(event.status.try_into().unwrap_or_default()),
                private_data: connection_details(event.details).private_data,
            },
            EventKind::Disconnected => Error::Disconnected,
            EventKind::DeviceRemoval | EventKind::AddressError => Error::DeviceGone,
            EventKind::Unreachable if event.status > 0 => Error::NoService {
                status: SidrStatus(event.status.try_into().unwrap_or(u8::MAX)),
                private_data: service_details(event.details).private_data,
            },
            _ => Error::Unreachable,
        }
    }
}

/// Returns a queue pair with the default sizes and a completion queue of its own.
pub(super) fn queue_pair(device: &Device) -> Result<PreparedQueuePair, Error> {
    let context = device.open()?;
    let cq = context.completion_queue()?;
    Ok(context.pd().queue_pair(&cq, &cq).build()?)
}

/// Checks that a queue pair belongs to the device of the route.
pub(super) fn check_device(given: &Device, bound: &Bound) -> Result<(), Error> {
    match Arc::ptr_eq(&given.0, &bound.device) {
        true => Ok(()),
        false => Err(Error::OtherDevice {
            given: given.name().to_owned(),
            needed: Device(Arc::clone(&bound.device)).name().to_owned(),
        }),
    }
}

impl PreparedQueuePair {
    /// Checks that the queue pair is reliable and belongs to the device of the route.
    pub(super) fn check_for(&self, bound: &Bound) -> Result<(), Error> {
        if self.service() != QpType::Rc {
            return Err(Error::NotReliable);
        }
        check_device(&self.device(), bound)
    }

    /// Connects with the attributes that the connection manager negotiated.
    ///
    /// `resources` overrides the responder resources and the initiator depth.
    pub(super) fn connect_by(
        self,
        id: &Id,
        resources: Option<(u8, u8)>,
    ) -> Result<QueuePair, Error> {
        let mut steps = Vec::new();
        for state in [QpState::Rtr, QpState::Rts] {
            let (mut attr, mask) = id.qp_attributes(state)?;
            if let Some((responder_resources, initiator_depth)) = resources {
                attr.max_dest_rd_atomic = responder_resources;
                attr.max_rd_atomic = initiator_depth;
            }
            steps.push((attr, mask));
        }
        let connected: Result<QueuePair, ModifyError> = self.connect_with(&steps);
        Ok(connected?)
    }
}
