//! Asynchronous events: what happens outside of completions (11.6.3 of the specification).
#![forbid(unsafe_code)]

use crate::wait::{self, Turn};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::events::{AsyncEvent, AsyncEvents, EventObject};
use urxe_proto::ids::Qpn;

pub use urxe_driver::events::EventType;

/// An asynchronous event. (`ibv_async_event`.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventType,
    /// Whom it happened to.
    pub subject: Subject,
}

/// Whom an event happened to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Subject {
    /// The queue pair of this number. No event of a queue pair comes once it is dropped.
    QueuePair(Qpn),
    /// A completion queue.
    CompletionQueue,
    /// A shared receive queue, which has no [limit](crate::SharedReceiveQueue::limit) any more.
    SharedReceiveQueue,
    /// The port of this number.
    Port(u8),
    /// The device.
    Device,
}

/// The asynchronous events of an opened device. Each is told once, to whoever asks first.
///
/// Its descriptor is readable while events wait, for use with `poll`, epoll or an async runtime;
/// then [`Events::try_next`] takes them.
#[derive(Clone, Debug)]
pub struct Events {
    queue: Arc<AsyncEvents>,
    /// Held by the thread that takes, so that what it saw waiting is there when it takes it.
    taking: Arc<Turn>,
}

impl Events {
    pub(crate) fn new(queue: Arc<AsyncEvents>) -> io::Result<Events> {
        // An event may be taken back, when its queue pair is dropped, after the descriptor was seen
        // readable: nobody may block on reading it.
        fcntl_setfl(queue.fd(), fcntl_getfl(queue.fd())? | OFlags::NONBLOCK)?;
        Ok(Events {
            queue,
            taking: Arc::default(),
        })
    }

    /// Takes the oldest event, waiting for one. (`ibv_get_async_event`, with the acknowledgement.)
    ///
    /// # Errors
    /// What the kernel says of the descriptor.
    pub fn next(&self) -> io::Result<Event> {
        wait::endlessly(|| self.next_until(None))
    }

    /// Takes the oldest event, waiting for at most `timeout`; `None` when none came.
    ///
    /// # Errors
    /// What the kernel says of the descriptor.
    pub fn next_timeout(&self, timeout: Duration) -> io::Result<Option<Event>> {
        self.next_until(wait::deadline(timeout))
    }

    /// Takes the oldest event if there is one.
    ///
    /// # Errors
    /// What the kernel says of the descriptor.
    pub fn try_next(&self) -> io::Result<Option<Event>> {
        self.next_timeout(Duration::ZERO)
    }

    fn next_until(&self, until: Option<Instant>) -> io::Result<Option<Event>> {
        let Some(_taking) = self.taking.take(until) else {
            return Ok(None);
        };
        Ok(wait::next(&self.queue, until)?.map(Event::from))
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

impl From<AsyncEvent> for Event {
    fn from(event: AsyncEvent) -> Event {
        let subject = match event.object {
            EventObject::Qp(qp) => Subject::QueuePair(qp.qpn()),
            EventObject::Share(share) => Subject::QueuePair(share.qp().qpn()),
            EventObject::Cq(_) => Subject::CompletionQueue,
            EventObject::Srq(_) => Subject::SharedReceiveQueue,
            EventObject::Port(port) => Subject::Port(port),
            EventObject::Device => Subject::Device,
        };
        Event {
            kind: event.kind,
            subject,
        }
    }
}
