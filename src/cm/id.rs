//! Identifiers of the connection manager, each with its own event channel.

use super::Error;
use crate::reactor::{Reactor, Readable};
use crate::wait::{self, TimedLock};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use urxe_driver::cm::channel::{ConnectionDetails, DatagramDetails, Details};
use urxe_driver::cm::id::{Service, Transport};
use urxe_driver::cm::resolve::Bound;
use urxe_driver::cm::{CmError, Event, EventChannel, EventKind, Id, PortSpace};

/// An identifier of the connection manager with its event channel. Dropping it closes it.
#[derive(Debug)]
pub(super) struct CmId {
    pub driver: Arc<Id>,
    channel: Arc<EventChannel>,
    /// Held while a thread takes an event.
    taking: TimedLock,
    /// The tasks that wait for events.
    readable: Readable,
}

/// The use of an identifier.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Reliable connections.
    Connections,
    /// Datagram services, found by service ID resolution.
    Datagrams,
}

/// A request that a listener received.
#[derive(Debug)]
pub(super) struct IncomingRequest {
    pub id: CmId,
    pub bound: Bound,
    pub details: Details,
}

impl CmId {
    fn new(kind: Kind) -> Result<CmId, Error> {
        let channel = channel()?;
        let (space, service) = match kind {
            Kind::Connections => (PortSpace::Tcp, Service::Connected(Transport::Rc)),
            Kind::Datagrams => (PortSpace::Udp, Service::Datagram),
        };
        let driver = Id::new(&channel, space, service);
        Ok(CmId {
            driver,
            channel,
            taking: TimedLock::default(),
            readable: Readable::default(),
        })
    }

    /// Returns a listening identifier and its actual address.
    pub fn listening(
        kind: Kind,
        address: SocketAddr,
        backlog: usize,
    ) -> Result<(CmId, SocketAddr), Error> {
        let id = CmId::new(kind)?;
        id.driver.bind(address)?;
        id.driver.listen(backlog)?;
        let address = id.driver.addresses().source.unwrap_or(address);
        Ok((id, address))
    }

    /// Returns an identifier with a resolved route to `destination`, and the route's local end.
    pub fn resolved(
        kind: Kind,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(CmId, Bound), Error> {
        let id = CmId::new(kind)?;
        id.driver.resolve_address(source, destination)?;
        let event = id.wait()?;
        if event.kind != EventKind::AddressResolved {
            return Err(Error::of(event));
        }
        id.driver.resolve_route()?;
        let event = id.wait()?;
        if event.kind != EventKind::RouteResolved {
            return Err(Error::of(event));
        }
        let bound = id.driver.addresses().bound.ok_or(CmError::NoDevice)?;
        Ok((id, bound))
    }

    /// Takes the next request that a listener received, waiting as [`CmId::next`] does.
    pub fn next_request(&self, until: Option<Instant>) -> Result<Option<IncomingRequest>, Error> {
        while let Some(event) = self.next(until)? {
            match event.kind {
                EventKind::ConnectRequest => {
                    event.id.leave_backlog();
                    let id = CmId::from_request(Arc::clone(&event.id))?;
                    if let Some(bound) = id.driver.addresses().bound {
                        let details = event.details;
                        return Ok(Some(IncomingRequest { id, bound, details }));
                    }
                }
                EventKind::DeviceRemoval => return Err(Error::DeviceGone),
                // A new link-layer address does not affect a listener.
                _ => {}
            }
        }
        Ok(None)
    }

    /// The identifier of a request, whose events go to a new channel from now on.
    fn from_request(driver: Arc<Id>) -> Result<CmId, Error> {
        let channel = match channel() {
            Ok(channel) => channel,
            Err(error) => {
                driver.close();
                return Err(error);
            }
        };
        driver.migrate(&channel);
        Ok(CmId {
            driver,
            channel,
            taking: TimedLock::default(),
            readable: Readable::default(),
        })
    }

    /// Takes the next event, waiting until `until`; `None` if none arrives in time.
    pub fn next(&self, until: Option<Instant>) -> io::Result<Option<Event>> {
        let Some(taking) = self.taking.acquire(until) else {
            return Ok(None);
        };
        let event = wait::next(&self.channel, until)?;
        drop(taking);
        if event.is_some() {
            self.readable.taken();
        }
        Ok(event)
    }

    /// Calls `take`, which takes events without waiting, each time that events are pending.
    pub fn poll_take<T>(
        &self,
        context: &Context<'_>,
        take: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Poll<Result<T, Error>> {
        self.readable.poll_take(context, self.fd(), take)
    }

    /// Selects the reactor for tasks that wait for events.
    pub fn use_reactor(&self, reactor: Arc<dyn Reactor>) {
        self.readable.use_reactor(reactor);
    }

    /// Takes the next event, waiting without a deadline.
    pub fn wait(&self) -> io::Result<Event> {
        wait::without_deadline(|| self.next(None))
    }

    /// The descriptor, which is readable while events are pending.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.driver.close();
    }
}

fn channel() -> Result<Arc<EventChannel>, Error> {
    EventChannel::new().map(Arc::new).map_err(Error::Channel)
}

/// The details of a connection event; empty for other events.
pub(super) fn connection_details(details: Details) -> ConnectionDetails {
    match details {
        Details::Connection(details) => *details,
        _ => ConnectionDetails::default(),
    }
}

/// The details of a datagram service event; empty for other events.
pub(super) fn service_details(details: Details) -> DatagramDetails {
    match details {
        Details::Datagram(details) => *details,
        _ => DatagramDetails::default(),
    }
}
