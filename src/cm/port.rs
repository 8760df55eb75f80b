//! An identifier with a channel of its own, and taking events from it.

use super::Error;
use crate::wait::{self, Turn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use urxe_driver::cm::channel::{ConnectionDetails, DatagramDetails, Details};
use urxe_driver::cm::id::{Service, Transport};
use urxe_driver::cm::resolve::Bound;
use urxe_driver::cm::{CmError, Event, EventChannel, EventKind, Id, PortSpace};

/// An identifier of the connection manager, which is brought to its end when this is dropped.
#[derive(Debug)]
pub(super) struct Port {
    pub id: Arc<Id>,
    channel: Arc<EventChannel>,
    /// Held by the thread that takes an event.
    taking: Turn,
}

/// What an identifier is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Reliable connections.
    Connections,
    /// Services that answer with a queue pair for datagrams.
    Datagrams,
}

/// A request that has come to a listener.
#[derive(Debug)]
pub(super) struct Asked {
    pub port: Port,
    pub bound: Bound,
    pub details: Details,
}

impl Port {
    fn new(kind: Kind) -> Result<Port, Error> {
        let channel = channel()?;
        let (space, service) = match kind {
            Kind::Connections => (PortSpace::Tcp, Service::Connected(Transport::Rc)),
            Kind::Datagrams => (PortSpace::Udp, Service::Datagram),
        };
        let id = Id::new(&channel, space, service);
        Ok(Port {
            id,
            channel,
            taking: Turn::default(),
        })
    }

    /// One that listens, and where.
    pub fn listening(
        kind: Kind,
        address: SocketAddr,
        backlog: usize,
    ) -> Result<(Port, SocketAddr), Error> {
        let port = Port::new(kind)?;
        port.id.bind(address)?;
        port.id.listen(backlog)?;
        let address = port.id.addresses().source.unwrap_or(address);
        Ok((port, address))
    }

    /// One that knows the way to `destination`, and where the way begins.
    pub fn on_the_way(
        kind: Kind,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(Port, Bound), Error> {
        let port = Port::new(kind)?;
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
        Ok((port, bound))
    }

    /// Takes the next request of those who ask a listener, waiting as [`Port::next`] does.
    pub fn next_request(&self, until: Option<Instant>) -> Result<Option<Asked>, Error> {
        while let Some(event) = self.next(until)? {
            match event.kind {
                EventKind::ConnectRequest => {
                    event.id.take_up();
                    let port = Port::of_request(Arc::clone(&event.id))?;
                    if let Some(bound) = port.id.addresses().bound {
                        let details = event.details;
                        return Ok(Some(Asked {
                            port,
                            bound,
                            details,
                        }));
                    }
                }
                EventKind::DeviceRemoval => return Err(Error::DeviceGone),
                // The link has another address, which changes nothing here.
                _ => {}
            }
        }
        Ok(None)
    }

    /// That of a request, whose events go to a channel of its own from now on.
    fn of_request(id: Arc<Id>) -> Result<Port, Error> {
        let channel = match channel() {
            Ok(channel) => channel,
            Err(error) => {
                id.close();
                return Err(error);
            }
        };
        id.migrate(&channel);
        Ok(Port {
            id,
            channel,
            taking: Turn::default(),
        })
    }

    /// Takes the next event, waiting for one; with `until` until that time, then `None`.
    pub fn next(&self, until: Option<Instant>) -> io::Result<Option<Event>> {
        let Some(_taking) = self.taking.take(until) else {
            return Ok(None);
        };
        wait::next(&self.channel, until)
    }

    /// Takes the next event, however long that takes.
    pub fn wait(&self) -> io::Result<Event> {
        wait::endlessly(|| self.next(None))
    }

    /// Readable while events wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.id.close();
    }
}

fn channel() -> Result<Arc<EventChannel>, Error> {
    EventChannel::new().map(Arc::new).map_err(Error::Channel)
}

/// What a peer said of a connection, if that is what was said.
pub(super) fn of_connection(details: Details) -> ConnectionDetails {
    match details {
        Details::Connection(details) => *details,
        _ => ConnectionDetails::default(),
    }
}

/// What a peer said of a service, if that is what was said.
pub(super) fn of_service(details: Details) -> DatagramDetails {
    match details {
        Details::Datagram(details) => *details,
        _ => DatagramDetails::default(),
    }
}
