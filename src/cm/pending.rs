//! Connections that are being established.

use super::connection::Connection;
use super::error::Error;
use super::id::{CmId, connection_details};
use crate::qp::{PreparedQueuePair, QueuePair};
use crate::reactor::{Reactor, Readable};
use crate::wait;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use urxe_driver::cm::EventKind;

/// A connection that is being established. Dropping it abandons the attempt.
///
/// The descriptor is readable when progress is possible, for use with `poll`, epoll or an async
/// runtime. [`Pending::try_finish`] then makes it. It is also a future of the connection.
///
/// ```
/// use urxe::cm::{Listener, Options, Pending, Route};
/// # use std::os::fd::AsFd;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One thread drives both ends.
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let route = Route::resolve(listener.local_addr())?;
/// let context = route.device().open()?;
/// let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = || pd.queue_pair(&cq, &cq).build();
///
/// let mut client = route.start_connecting(qp()?, &Options::default())?;
/// let request = listener.next()?;
/// let mut server = request.start_accepting(qp()?, &Options::default())?;
///
/// let wait_for = |pending: &Pending| {
///     use rustix::event::{PollFd, PollFlags, poll};
///     poll(&mut [PollFd::new(pending, PollFlags::IN)], None)
/// };
/// let client = loop {
///     match client.try_finish()? {
///         Some(connection) => break connection,
///         None => wait_for(&client)?,
///     };
/// };
/// let server = loop {
///     match server.try_finish()? {
///         Some(connection) => break connection,
///         None => wait_for(&server)?,
///     };
/// };
/// assert_eq!(client.peer_addr(), server.local_addr());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pending {
    unfinished: Option<Unfinished>,
    /// The task that waits for the connection.
    readable: Readable,
}

#[derive(Debug)]
struct Unfinished {
    /// Dropped before the queue pair, so that the peer receives the REJ or DREQ first.
    id: CmId,
    end: End,
}

/// The role of this end.
#[derive(Debug)]
enum End {
    /// Sent the REQ.
    Connecting(PreparedQueuePair),
    /// Sent the REP; with the private data of the peer's REQ.
    Accepting(QueuePair, Vec<u8>),
}

impl Pending {
    pub(super) fn connecting(id: CmId, qp: PreparedQueuePair) -> Pending {
        Pending::new(id, End::Connecting(qp))
    }

    pub(super) fn accepting(id: CmId, qp: QueuePair, private_data: Vec<u8>) -> Pending {
        Pending::new(id, End::Accepting(qp, private_data))
    }

    fn new(id: CmId, end: End) -> Pending {
        Pending {
            unfinished: Some(Unfinished { id, end }),
            readable: Readable::default(),
        }
    }

    /// Selects the reactor for this future; see [`reactor`](crate::reactor).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::Options;
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr();
    /// # let server = std::thread::spawn(move || listener.accept_blocking());
    /// let route = Route::resolve(address)?;
    /// # let context = route.device().open()?;
    /// # let cq = context.completion_queue()?;
    /// # let qp = context.pd().queue_pair(&cq, &cq).build()?;
    /// let pending = route.start_connecting(qp, &Options::default())?;
    /// pending.use_reactor(AsyncIo);
    /// let connection = pending.await?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        self.readable.use_reactor(Arc::new(reactor));
    }

    /// Waits until the connection is established, and returns it.
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
    /// let pending = route.start_connecting(qp, &Options::default())?;
    /// // The program may do other things here.
    /// let connection = pending.finish()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Error`]. The queue pair is destroyed on an error.
    pub fn finish(mut self) -> Result<Connection, Error> {
        wait::without_deadline(|| self.finish_until(None))
    }

    /// Returns the connection if it is established; `None` while the attempt continues.
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
    /// let mut pending = route.start_connecting(qp, &Options::default())?;
    /// let connection = loop {
    ///     if let Some(connection) = pending.try_finish()? {
    ///         break connection;
    ///     }
    ///     std::thread::yield_now();
    /// };
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Error`]: the attempt has failed, and the queue pair is destroyed. [`Error::Finished`]
    /// if an earlier call returned the connection or an error.
    pub fn try_finish(&mut self) -> Result<Option<Connection>, Error> {
        self.finish_until(Some(Instant::now()))
    }

    fn finish_until(&mut self, until: Option<Instant>) -> Result<Option<Connection>, Error> {
        let unfinished = self.unfinished.as_ref().ok_or(Error::Finished)?;
        loop {
            let Some(event) = unfinished.id.next(until)? else {
                return Ok(None);
            };
            let is_expected = match unfinished.end {
                End::Connecting(_) => event.kind == EventKind::ConnectResponse,
                End::Accepting(..) => event.kind == EventKind::Established,
            };
            match event.kind {
                // The peer may have to resolve the link-layer address again, and does so itself.
                EventKind::AddressChange => continue,
                _ if is_expected => {}
                _ => {
                    self.unfinished = None;
                    return Err(Error::of(event));
                }
            }
            let Unfinished { id, end } = self.unfinished.take().ok_or(Error::Finished)?;
            return Ok(Some(match end {
                End::Accepting(qp, private_data) => Connection::new(id, qp, private_data),
                End::Connecting(qp) => {
                    let details = connection_details(event.details);
                    let qp = qp.connect_by(&id.driver, None)?;
                    id.driver.ready()?;
                    Connection::new(id, qp, details.private_data)
                }
            }));
        }
    }
}

impl AsFd for Pending {
    /// # Panics
    /// If the attempt has succeeded or failed: it has no descriptor then.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.unfinished {
            Some(unfinished) => unfinished.id.fd(),
            None => panic!("the attempt to connect has ended; use the connection's descriptor"),
        }
    }
}

impl AsRawFd for Pending {
    /// # Panics
    /// If the attempt has succeeded or failed: it has no descriptor then.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Future for Pending {
    type Output = Result<Connection, Error>;

    /// Returns the connection when it is established. Dropping the future abandons the attempt.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let readable = std::mem::take(&mut self.readable);
        let fd = match &self.unfinished {
            Some(unfinished) => unfinished.id.fd().try_clone_to_owned()?,
            None => return Poll::Ready(Err(Error::Finished)),
        };
        let polled = readable.poll_take(context, fd.as_fd(), || self.try_finish());
        self.readable = readable;
        polled
    }
}
