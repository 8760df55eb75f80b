//! Datagram services, found by address and port, and multicast groups.

use super::connection::check_device;
use super::error::Error;
use super::port::{Kind, Port, of_service};
use crate::device::Device;
use crate::qp::{DatagramAddress, DatagramQueuePair, Destination};
use crate::wait;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::cm::id::UDP_QKEY;
use urxe_driver::cm::resolve::Bound;
use urxe_driver::cm::{EventKind, Offer};
use urxe_proto::cm::wire::RejectReason;
use urxe_proto::ids::{Gid, QKey};

/// The key of the queue pairs of all services and groups. (`RDMA_UDP_QKEY`.)
pub const QKEY: QKey = UDP_QKEY;

/// A datagram service: tells who asks which queue pair to send to. Threads may share it; each question goes
/// to one of them. (`rdma_listen` in `RDMA_PS_UDP`.)
///
/// Its descriptor is readable while questions wait, for use with `poll`, epoll or an async runtime;
/// then [`Service::try_next`] takes them.
///
/// ```
/// use std::thread;
/// use urxe::cm::{QKEY, Service, ServiceRoute};
/// use urxe::{GRH_BYTES, ReceiveRequest, RemoteAccess, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = Service::bind("127.0.0.1:0".parse()?)?;
/// let at = service.local_addr();
///
/// let client = thread::spawn(move || -> Result<(), urxe::cm::Error> {
///     let route = ServiceRoute::resolve(at)?;
///     let context = route.device().open()?;
///     let cq = context.completion_queue()?;
///     let qp = context.pd().queue_pair(&cq, &cq).build_datagram(QKEY)?;
///     let found = route.ask(&qp, b"please")?;
///     assert!(found.private_data.starts_with(b"here you are"));
///     qp.post_send(&found.destination, SendRequest::send(b"a datagram"))?;
///     cq.wait()?;
///     Ok(())
/// });
///
/// let question = service.next()?;
/// assert!(question.private_data().starts_with(b"please"));
/// let context = question.device().open()?;
/// let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// let memory = pd.register(GRH_BYTES + 64, RemoteAccess::empty())?;
/// qp.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
/// question.answer(&qp, b"here you are")?;
/// assert_eq!(cq.wait()?.data()?, b"a datagram");
/// client.join().unwrap()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Service {
    port: Port,
    address: SocketAddr,
}

impl Service {
    /// Is found at an address of this host, or at all addresses, those to come included, where it is
    /// unspecified. Port 0 is any that is free. (`rdma_bind_addr` and `rdma_listen`.)
    ///
    /// # Errors
    /// [`Error::Cm`] for an address that is no device's and a port that is taken.
    pub fn bind(address: SocketAddr) -> Result<Service, Error> {
        let (port, address) = Port::listening(Kind::Datagrams, address, 0)?;
        Ok(Service { port, address })
    }

    /// Where it is found. (`rdma_get_local_addr`.)
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes the next question, waiting for one. (`rdma_get_request`.)
    ///
    /// # Errors
    /// [`Error::DeviceGone`] when the interface of its address was removed.
    pub fn next(&self) -> Result<Question, Error> {
        wait::endlessly(|| self.next_until(None))
    }

    /// Takes the next question, waiting for at most `timeout`; `None` when none came.
    ///
    /// # Errors
    /// See [`Service::next`].
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Question>, Error> {
        self.next_until(wait::deadline(timeout))
    }

    /// Takes a question if there is one.
    ///
    /// # Errors
    /// See [`Service::next`].
    pub fn try_next(&self) -> Result<Option<Question>, Error> {
        self.next_timeout(Duration::ZERO)
    }

    fn next_until(&self, until: Option<Instant>) -> Result<Option<Question>, Error> {
        let asked = self.port.next_request(until)?;
        Ok(asked.map(|asked| Question {
            port: asked.port,
            bound: asked.bound,
            private_data: of_service(asked.details).private_data,
        }))
    }
}

impl AsFd for Service {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }
}

/// Somebody asks for the queue pair of a service. Dropping it says that there is none.
#[derive(Debug)]
pub struct Question {
    port: Port,
    bound: Bound,
    private_data: Vec<u8>,
}

impl Question {
    /// What the peer's program said, with the zeros that fill the message: 180 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The address that was asked, with the service's port. (`rdma_get_local_addr`.)
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.port.id.addresses().source
    }

    /// The peer's address, and its port. (`rdma_get_peer_addr`.)
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.port.id.addresses().destination
    }

    /// The device that it came to, whose queue pair the answer needs.
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// Tells the peer to send to this queue pair, and at most 136 bytes for its program. (`rdma_accept`.)
    ///
    /// # Errors
    /// When the peer has given up meanwhile, there are too many bytes, or the queue pair is of another device or
    /// has another key than [`QKEY`].
    pub fn answer(self, qp: &DatagramQueuePair, private_data: &[u8]) -> Result<(), Error> {
        check_device(&qp.device(), &self.bound)?;
        let address = qp.address();
        if address.qkey != QKEY {
            return Err(Error::OtherQKey);
        }
        let offer = Offer {
            private_data: private_data.to_vec(),
            qpn: address.qpn,
            ..Offer::default()
        };
        Ok(self.port.id.accept(&offer)?)
    }

    /// Says that this peer gets none, and at most 136 bytes for its program. (`rdma_reject`.)
    ///
    /// # Errors
    /// When the peer has given up meanwhile, or there are too many bytes.
    pub fn refuse(self, private_data: &[u8]) -> Result<(), Error> {
        let reason = RejectReason::CONSUMER;
        Ok(self.port.id.reject(reason, private_data)?)
    }
}

/// The way to the address and port of a datagram service.
#[derive(Debug)]
pub struct ServiceRoute {
    port: Port,
    bound: Bound,
}

/// What a service answers.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its queue pair, and the way there.
    pub destination: Destination,
    /// What its program said, with the zeros that fill the message: 136 bytes.
    pub private_data: Vec<u8>,
}

impl ServiceRoute {
    /// Finds the way that the kernel's routes tell. (`rdma_resolve_addr` and `rdma_resolve_route`.)
    ///
    /// # Errors
    /// [`Error::Cm`] where there is none, or it begins at an interface that is no device.
    pub fn resolve(destination: SocketAddr) -> Result<ServiceRoute, Error> {
        let (port, bound) = Port::on_the_way(Kind::Datagrams, None, destination)?;
        Ok(ServiceRoute { port, bound })
    }

    /// The device at which it begins, whose queue pair is to send.
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.bound.device))
    }

    /// Asks, with at most 180 bytes for the peer's program, and waits for the answer: for 70 seconds where
    /// nobody answers. (`rdma_connect`.)
    ///
    /// # Errors
    /// [`Error::NoService`] when there is none, or the peer does not want this; [`Error::OtherQKey`] for a queue pair
    /// with another key than [`QKEY`]; see [`Error`] for more.
    pub fn ask(self, qp: &DatagramQueuePair, private_data: &[u8]) -> Result<Found, Error> {
        check_device(&qp.device(), &self.bound)?;
        let offer = Offer {
            private_data: private_data.to_vec(),
            qpn: qp.qpn(),
            ..Offer::default()
        };
        self.port.id.connect(&offer)?;
        loop {
            let event = self.port.wait()?;
            match event.kind {
                EventKind::Established => {
                    let found = of_service(event.details);
                    return Ok(Found {
                        destination: qp.destination_by(found.av, found.qpn, found.qkey)?,
                        private_data: found.private_data,
                    });
                }
                EventKind::AddressChange => {}
                _ => return Err(Error::of(event)),
            }
        }
    }
}

/// That a queue pair is in a multicast group, until this is dropped: it gets what is sent to the group, its own
/// datagrams too. (`rdma_join_multicast` and `rdma_leave_multicast`.)
///
/// ```
/// use urxe::cm::{Membership, QKEY};
/// use urxe::{GRH_BYTES, ReceiveRequest, RemoteAccess, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = urxe::device("urxe_lo")?.open()?;
/// let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// let memory = pd.register(GRH_BYTES + 64, RemoteAccess::empty())?;
/// qp.post_receive(ReceiveRequest::into(memory.slice(..)?).id(1))?;
/// let membership = Membership::join(&qp, "239.1.2.3".parse()?)?;
/// qp.post_send(membership.destination(), SendRequest::send(b"to all"))?;
/// let completions = [cq.wait()?, cq.wait()?];
/// assert!(completions.iter().any(|one| one.data().is_ok_and(|data| data == b"to all")));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Membership<'a> {
    qp: &'a DatagramQueuePair,
    group: Gid,
    destination: Destination,
}

impl<'a> Membership<'a> {
    /// Joins a group by its IP address, at the interface of the queue pair's device.
    ///
    /// # Errors
    /// [`Error::OtherQKey`] for a queue pair with another key than [`QKEY`]; [`Error::Multicast`] for what is no group's
    /// address, and where the system does not permit it.
    pub fn join(qp: &'a DatagramQueuePair, group: IpAddr) -> Result<Membership<'a>, Error> {
        if qp.address().qkey != QKEY {
            return Err(Error::OtherQKey);
        }
        let group = Gid::from_ip(group);
        qp.attach(group)?;
        let address = DatagramAddress::group(group, QKEY);
        match qp.destination(&address) {
            Ok(destination) => Ok(Membership {
                qp,
                group,
                destination,
            }),
            Err(error) => {
                qp.detach(group)?;
                Err(error.into())
            }
        }
    }

    /// The group, and the way there.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }
}

impl Drop for Membership<'_> {
    fn drop(&mut self) {
        // It is attached; what was detached by hand is as good.
        let _ = self.qp.detach(self.group);
    }
}
