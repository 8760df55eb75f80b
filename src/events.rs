//! Asynchronous events of a device: errors and state changes (11.6.3 of the specification).
#![forbid(unsafe_code)]

mod asynchronous;

use crate::reactor::{Reactor, Readable};
use crate::wait::{self, TimedLock};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use urxe_driver::events::{AsyncEvent, AsyncEvents, EventObject};
use urxe_proto::ids::Qpn;

pub use urxe_driver::events::EventType;

/// An asynchronous event. (`ibv_async_event`.)
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::EventType;
///
/// let (a, b) = urxe::testing::pair()?;
/// a.drain()?;
/// let event = a.context().events().wait()?;
/// assert_eq!(event.kind, EventType::SqDrained);
/// println!("{:?} reports {:?}", event.source, event.kind);
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The kind of event.
    pub kind: EventType,
    /// The object that the event is about.
    pub source: EventSource,
}

/// The object that an asynchronous event is about. (`element` of `ibv_async_event`.)
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::EventSource;
///
/// let (a, b) = urxe::testing::pair()?;
/// a.drain()?;
/// match a.context().events().wait()?.source {
///     EventSource::QueuePair(qpn) => assert_eq!(qpn, a.qpn()),
///     other => println!("an event of {other:?}"),
/// }
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum EventSource {
    /// The queue pair of this number. Its pending events are discarded when it is dropped.
    QueuePair(Qpn),
    /// A completion queue.
    CompletionQueue,
    /// A shared receive queue. Its [limit](crate::SharedReceiveQueue::limit) is 0 now.
    SharedReceiveQueue,
    /// A work queue of raw packets, which this API does not create.
    WorkQueue,
    /// The port of this number.
    Port(u8),
    /// The device.
    Device,
}

/// The asynchronous events of an opened device. Clones share one queue: each event is returned
/// once.
///
/// The descriptor is readable while events are pending, for use with `poll`, epoll or an async
/// runtime. [`Events::poll`] then returns them.
///
/// ```
/// use urxe::prelude::*;
/// use urxe::{EventSource, EventType};
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// a.drain()?;
/// let event = context.events().wait()?;
/// assert_eq!((event.kind, event.source), (EventType::SqDrained, EventSource::QueuePair(a.qpn())));
/// a.resume()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Events {
    queue: Arc<AsyncEvents>,
    /// Held while a thread takes an event, so that an event it has polled for is still there.
    taking: Arc<TimedLock>,
    /// The tasks that wait for events.
    readable: Arc<Readable>,
}

impl Events {
    pub(crate) fn new(queue: Arc<AsyncEvents>) -> io::Result<Events> {
        // Dropping a queue pair removes its pending events. A descriptor that was readable may then
        // be empty, and a blocking read would hang.
        fcntl_setfl(queue.fd(), fcntl_getfl(queue.fd())? | OFlags::NONBLOCK)?;
        Ok(Events {
            queue,
            taking: Arc::default(),
            readable: Arc::default(),
        })
    }

    /// Takes the oldest event, and waits for one if there is none. (`ibv_get_async_event` and
    /// `ibv_ack_async_event`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::EventType;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// a.drain()?;
    /// assert_eq!(a.context().events().wait()?.kind, EventType::SqDrained);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor.
    pub fn wait(&self) -> io::Result<Event> {
        wait::without_deadline(|| self.wait_until(None))
    }

    /// Takes the oldest event, waiting for at most `timeout`; `None` if none arrives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::time::Duration;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let events = a.context().events();
    /// assert!(events.wait_timeout(Duration::from_millis(1))?.is_none());
    /// a.drain()?;
    /// assert!(events.wait_timeout(Duration::from_secs(60))?.is_some());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor.
    pub fn wait_timeout(&self, timeout: Duration) -> io::Result<Option<Event>> {
        self.wait_until(wait::deadline(timeout))
    }

    /// Takes the oldest event; `None` if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// while let Some(event) = a.context().events().poll()? {
    ///     println!("{:?} of {:?}", event.kind, event.source);
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor.
    pub fn poll(&self) -> io::Result<Option<Event>> {
        self.wait_timeout(Duration::ZERO)
    }

    fn wait_until(&self, until: Option<Instant>) -> io::Result<Option<Event>> {
        let Some(taking) = self.taking.acquire(until) else {
            return Ok(None);
        };
        let event = wait::next(&self.queue, until)?;
        drop(taking);
        if event.is_some() {
            self.readable.taken();
        }
        Ok(event.map(Event::from))
    }

    /// Takes the oldest event, and waits for one if there is none.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::EventType;
    ///
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// a.drain()?;
    /// assert_eq!(a.context().events().next().await?.kind, EventType::SqDrained);
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor, or of the reactor.
    pub async fn next(&self) -> io::Result<Event> {
        poll_fn(|context| self.poll_event(context)).await
    }

    /// Selects the reactor for the futures of this object; see [`reactor`](crate::reactor).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// let events = a.context().events();
    /// events.use_reactor(AsyncIo);
    /// a.drain()?;
    /// println!("{:?}", events.next().await?);
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        self.readable.use_reactor(Arc::new(reactor));
    }

    fn poll_event(&self, context: &Context<'_>) -> Poll<io::Result<Event>> {
        let take = || self.poll();
        self.readable.poll_take(context, self.as_fd(), take)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl From<AsyncEvent> for Event {
    fn from(event: AsyncEvent) -> Event {
        let source = match event.object {
            EventObject::Qp(origin) | EventObject::Share(origin) => {
                EventSource::QueuePair(origin.qpn().unwrap_or_default())
            }
            EventObject::Cq(_) => EventSource::CompletionQueue,
            EventObject::Srq(_) => EventSource::SharedReceiveQueue,
            EventObject::Wq(_) => EventSource::WorkQueue,
            EventObject::Port(port) => EventSource::Port(port),
            EventObject::Device => EventSource::Device,
        };
        Event {
            kind: event.kind,
            source,
        }
    }
}
