//! An identifier with a channel of its own, and taking events from it.

use super::Error;
use crate::wait::{self, Turn};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use urxe_driver::cm::channel::ConnectionDetails;
use urxe_driver::cm::id::{Service, Transport};
use urxe_driver::cm::{Event, EventChannel, Id, PortSpace};

/// An identifier of the connection manager, which is brought to its end when this is dropped.
#[derive(Debug)]
pub(super) struct Port {
    pub id: Arc<Id>,
    channel: Arc<EventChannel>,
    /// Held by the thread that takes an event.
    taking: Turn,
}

impl Port {
    /// A new one, for reliable connections.
    pub fn new() -> Result<Port, Error> {
        let channel = channel()?;
        let service = Service::Connected(Transport::Rc);
        let id = Id::new(&channel, PortSpace::Tcp, service);
        Ok(Port {
            id,
            channel,
            taking: Turn::default(),
        })
    }

    /// That of a request, whose events go to a channel of its own from now on.
    pub fn of_request(id: Arc<Id>) -> Result<Port, Error> {
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
        loop {
            if let Some(event) = self.next(None)? {
                return Ok(event);
            }
        }
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

/// What a peer said of a connection, if an event is about that.
pub(super) fn said(event: Event) -> ConnectionDetails {
    match event.details {
        urxe_driver::cm::channel::Details::Connection(details) => *details,
        _ => ConnectionDetails::default(),
    }
}
