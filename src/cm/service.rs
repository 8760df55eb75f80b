//! Datagram services, resolved by address and port.

use super::address::first_of;
use super::connection::check_device;
use super::error::Error;
use super::id::{CmId, Kind, service_details};
use crate::device::Device;
use crate::qp::{DatagramQueuePair, Destination};
use crate::reactor::Reactor;
use crate::wait;
use std::future::poll_fn;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::cm::id::UDP_QKEY;
use urxe_driver::cm::resolve::Bound;
use urxe_driver::cm::{ConnParam, EventKind};
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::ids::QKey;

/// The Q_Key of the queue pairs of all services and groups. (`RDMA_UDP_QKEY`.)
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::cm::QKEY;
///
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// assert_eq!(qp.address().qkey, QKEY);
/// # Ok::<(), urxe::Error>(())
/// ```
pub const QKEY: QKey = UDP_QKEY;

/// A datagram service: resolves its address and port to a queue pair (SIDR). (`rdma_listen` in
/// `RDMA_PS_UDP`.)
///
/// Threads may share it; each request is returned to one of them. The descriptor is readable while
/// requests are pending, for use with `poll`, epoll or an async runtime. [`Service::try_next`] then
/// returns them.
///
/// ```
/// use std::thread;
/// use urxe::cm::{QKEY, Service, ServiceRoute};
/// use urxe::{GRH_BYTES, ReceiveRequest, RemoteAccess, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = Service::bind("127.0.0.1:0")?;
/// let address = service.local_addr();
///
/// let client = thread::spawn(move || -> Result<(), urxe::cm::Error> {
///     let route = ServiceRoute::resolve(address)?;
///     let context = route.device().open()?;
///     let cq = context.completion_queue()?;
///     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
///     let reply = route.request(&qp, b"please")?;
///     assert!(reply.private_data.starts_with(b"here you are"));
///     qp.post_send(&reply.destination, SendRequest::send(b"a datagram"))?;
///     cq.wait()?;
///     Ok(())
/// });
///
/// let request = service.next()?;
/// assert!(request.private_data().starts_with(b"please"));
/// let context = request.device().open()?;
/// let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// let memory = pd.register(GRH_BYTES + 64, RemoteAccess::empty())?;
/// qp.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
/// request.accept(&qp, b"here you are")?;
/// assert_eq!(cq.wait()?.data()?, b"a datagram");
/// client.join().unwrap()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Service {
    id: CmId,
    address: SocketAddr,
}

impl Service {
    /// Serves requests to an address of this host. (`rdma_bind_addr` and `rdma_listen`.)
    ///
    /// An unspecified address stands for all addresses, including those added later. Port 0
    /// selects a free port.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Service;
    ///
    /// let service = Service::bind("127.0.0.1:0")?;
    /// println!("serving {}", service.local_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Cm`] if the address belongs to no device or the port is in use.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Service, Error> {
        let listen = |address| CmId::listening(Kind::Datagrams, address, 0);
        let (id, address) = first_of(address, listen)?;
        Ok(Service { id, address })
    }

    /// The address and port of the service. (`rdma_get_local_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Service;
    ///
    /// assert_ne!(Service::bind("127.0.0.1:0")?.local_addr().port(), 0);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes the next request, and waits for one if there is none. (`rdma_get_request`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next()?;
    /// println!("{:?} asks for a queue pair", request.peer_addr());
    /// request.reject(b"not now")?;
    /// assert!(client.join().unwrap().is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceGone`] if the interface of its address was removed.
    pub fn next(&self) -> Result<ServiceRequest, Error> {
        wait::without_deadline(|| self.next_until(None))
    }

    /// Takes the next request, waiting for at most `timeout`; `None` if none arrives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::time::Duration;
    /// use urxe::cm::Service;
    ///
    /// let service = Service::bind("127.0.0.1:0")?;
    /// assert!(service.next_timeout(Duration::from_millis(1))?.is_none());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Service::next`].
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<ServiceRequest>, Error> {
        self.next_until(wait::deadline(timeout))
    }

    /// Takes the next request; `None` if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Service;
    ///
    /// assert!(Service::bind("127.0.0.1:0")?.try_next()?.is_none());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Service::next`].
    pub fn try_next(&self) -> Result<Option<ServiceRequest>, Error> {
        self.next_timeout(Duration::ZERO)
    }

    /// Takes the next request, and waits for one if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next_request().await?;
    /// request.reject(b"not now")?;
    /// assert!(client.join().unwrap().is_err());
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// See [`Service::next`], and the error of the reactor.
    pub async fn next_request(&self) -> Result<ServiceRequest, Error> {
        poll_fn(|context| self.id.poll_take(context, || self.try_next())).await
    }

    /// Selects the reactor for the futures of this object; see [`reactor`](crate::reactor).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// service.use_reactor(AsyncIo);
    /// service.next_request().await?.reject(b"not now")?;
    /// assert!(client.join().unwrap().is_err());
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        self.id.use_reactor(Arc::new(reactor));
    }

    fn next_until(&self, until: Option<Instant>) -> Result<Option<ServiceRequest>, Error> {
        let incoming = self.id.next_request(until)?;
        Ok(incoming.map(|incoming| ServiceRequest {
            id: incoming.id,
            bound: incoming.bound,
            private_data: service_details(incoming.details).private_data,
        }))
    }
}

impl AsFd for Service {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}

impl AsRawFd for Service {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// An incoming request for the queue pair of a service (SIDR REQ). Dropping it rejects it.
///
/// ```
/// # use urxe::prelude::*;
/// # use urxe::cm::{QKEY, Service, ServiceRoute};
/// # let service = Service::bind("127.0.0.1:0")?;
/// # let address = service.local_addr();
/// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
/// #     let route = ServiceRoute::resolve(address)?;
/// #     let context = route.device().open()?;
/// #     let cq = context.completion_queue()?;
/// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// #     route.request(&qp, b"please")
/// # });
/// let request = service.next()?;
/// println!("{:?} asks for a queue pair", request.peer_addr());
/// // Dropping a request rejects it.
/// drop(request);
/// assert!(client.join().unwrap().is_err());
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct ServiceRequest {
    id: CmId,
    bound: Bound,
    private_data: Vec<u8>,
}

impl ServiceRequest {
    /// The peer's private data, 180 bytes; unused bytes at the end are zero.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next()?;
    /// assert!(request.private_data().starts_with(b"please"));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The address that the peer requests, with the service's port. (`rdma_get_local_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next()?;
    /// assert_eq!(request.local_addr(), Some(service.local_addr()));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.driver.addresses().source
    }

    /// The peer's address and port. (`rdma_get_peer_addr`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next()?;
    /// println!("a request from {:?}", request.peer_addr());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.driver.addresses().destination
    }

    /// The device that received the request. The reply needs a queue pair of this device.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next()?;
    /// let context = request.device().open()?;
    /// let pd = context.pd();
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// Replies with a queue pair and at most 136 bytes of private data. (`rdma_accept`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next()?;
    /// let context = request.device().open()?;
    /// let cq = context.completion_queue()?;
    /// let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// request.accept(&qp, b"welcome")?;
    /// let reply = client.join().unwrap()?;
    /// assert_eq!(reply.destination.address(), qp.address());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Error`]: the peer has given up, there is too much private data, or the queue pair
    /// belongs to another device or has another Q_Key than [`QKEY`].
    pub fn accept(self, qp: &DatagramQueuePair, private_data: &[u8]) -> Result<(), Error> {
        check_device(&qp.device(), &self.bound)?;
        let address = qp.address();
        if address.qkey != QKEY {
            return Err(Error::OtherQKey);
        }
        let conn_param = ConnParam {
            private_data: private_data.to_vec(),
            qpn: address.qpn,
            ..ConnParam::default()
        };
        Ok(self.id.driver.accept(&conn_param)?)
    }

    /// Rejects the request, with at most 136 bytes of private data. (`rdma_reject`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::{Error, SidrStatus};
    ///
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let client = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let route = ServiceRoute::resolve(address)?;
    /// #     let context = route.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     route.request(&qp, b"please")
    /// # });
    /// let request = service.next()?;
    /// request.reject(b"not now")?;
    /// match client.join().unwrap() {
    ///     Err(Error::NoService { status: SidrStatus::REJECTED, private_data }) => {
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

/// A resolved route to the address and port of a datagram service.
///
/// ```
/// # use urxe::prelude::*;
/// # use urxe::cm::{QKEY, Service, ServiceRoute};
/// # let service = Service::bind("127.0.0.1:0")?;
/// # let address = service.local_addr();
/// # let server = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
/// #     let request = service.next()?;
/// #     let context = request.device().open()?;
/// #     let cq = context.completion_queue()?;
/// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// #     request.accept(&qp, b"welcome")?;
/// #     Ok(qp)
/// # });
/// let route = ServiceRoute::resolve(address)?;
/// let context = route.device().open()?;
/// let cq = context.completion_queue()?;
/// let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// let reply = route.request(&qp, b"please")?;
/// qp.post_send(&reply.destination, SendRequest::send(b"hello"))?;
/// cq.wait()?.result?;
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
pub struct ServiceRoute {
    id: CmId,
    bound: Bound,
}

/// The reply of a datagram service (SIDR REP).
///
/// ```
/// # use urxe::prelude::*;
/// # use urxe::cm::{QKEY, Service, ServiceRoute};
/// # let service = Service::bind("127.0.0.1:0")?;
/// # let address = service.local_addr();
/// # let server = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
/// #     let request = service.next()?;
/// #     let context = request.device().open()?;
/// #     let cq = context.completion_queue()?;
/// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// #     request.accept(&qp, b"welcome")?;
/// #     Ok(qp)
/// # });
/// # let route = ServiceRoute::resolve(address)?;
/// # let context = route.device().open()?;
/// # let cq = context.completion_queue()?;
/// # let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// let reply = route.request(&qp, b"please")?;
/// assert!(reply.private_data.starts_with(b"welcome"));
/// qp.post_send(&reply.destination, SendRequest::send(b"hello"))?;
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceReply {
    /// The queue pair of the service, with the route to it.
    pub destination: Destination,
    /// The private data of the service, 136 bytes; unused bytes at the end are zero.
    pub private_data: Vec<u8>,
}

impl ServiceRoute {
    /// Resolves the route with the kernel's routing table. (`rdma_resolve_addr` and
    /// `rdma_resolve_route`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::ServiceRoute;
    ///
    /// let route = ServiceRoute::resolve("127.0.0.1:7471")?;
    /// println!("through {}", route.device().name());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Cm`] if there is no route, or its interface is not a device.
    pub fn resolve(destination: impl ToSocketAddrs) -> Result<ServiceRoute, Error> {
        let resolve = |destination| CmId::resolved(Kind::Datagrams, None, destination);
        let (id, bound) = first_of(destination, resolve)?;
        Ok(ServiceRoute { id, bound })
    }

    /// The local device of the route. Requests need a queue pair of this device.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::ServiceRoute;
    ///
    /// let context = ServiceRoute::resolve("127.0.0.1:7471")?.device().open()?;
    /// let pd = context.pd();
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// Requests the queue pair of the service and waits for the reply. (`rdma_connect`.)
    ///
    /// The request carries at most 180 bytes of private data. If the peer does not respond, the
    /// call fails after 70 seconds.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # use urxe::cm::{QKEY, Service, ServiceRoute};
    /// # let service = Service::bind("127.0.0.1:0")?;
    /// # let address = service.local_addr();
    /// # let server = std::thread::spawn(move || -> Result<_, urxe::cm::Error> {
    /// #     let request = service.next()?;
    /// #     let context = request.device().open()?;
    /// #     let cq = context.completion_queue()?;
    /// #     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// #     request.accept(&qp, b"welcome")?;
    /// #     Ok(qp)
    /// # });
    /// # let route = ServiceRoute::resolve(address)?;
    /// # let context = route.device().open()?;
    /// # let cq = context.completion_queue()?;
    /// # let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// let reply = route.request(&qp, b"please")?;
    /// println!("{:?}", reply.destination.address());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoService`] if there is no such service or it rejects the request;
    /// [`Error::OtherQKey`] if the queue pair has another Q_Key than [`QKEY`]; otherwise see
    /// [`Error`].
    pub fn request(
        self,
        qp: &DatagramQueuePair,
        private_data: &[u8],
    ) -> Result<ServiceReply, Error> {
        check_device(&qp.device(), &self.bound)?;
        let conn_param = ConnParam {
            private_data: private_data.to_vec(),
            qpn: qp.qpn(),
            ..ConnParam::default()
        };
        self.id.driver.connect(&conn_param)?;
        loop {
            let event = self.id.wait()?;
            match event.kind {
                EventKind::Established => {
                    let details = service_details(event.details);
                    return Ok(ServiceReply {
                        destination: qp.destination_by(details.av, details.qpn, details.qkey)?,
                        private_data: details.private_data,
                    });
                }
                EventKind::AddressChange => {}
                _ => return Err(Error::of(event)),
            }
        }
    }
}
