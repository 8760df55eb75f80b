//! Connections that are being made, without waiting.

use super::connection::Connection;
use super::error::Error;
use super::port::{Port, of_connection};
use crate::qp::{PreparedQueuePair, QueuePair};
use crate::wait;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;
use urxe_driver::cm::EventKind;

/// A connection that was asked for, or accepted, and is there when the peer has said so. Dropping it gives it
/// up.
///
/// Its descriptor is readable when there is something to do, for use with `poll`, epoll or an async
/// runtime; then [`Pending::try_finish`] does it.
///
/// ```
/// use urxe::cm::{Listener, Options, Pending, Route};
/// # use std::os::fd::AsFd;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One thread has both ends.
/// let listener = Listener::bind("127.0.0.1:0".parse()?)?;
/// let route = Route::resolve(listener.local_addr())?;
/// let context = route.device().open()?;
/// let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = || pd.queue_pair(&cq, &cq).build();
///
/// let mut ours = route.start_connecting(qp()?, &Options::default())?;
/// let request = listener.next()?;
/// let mut theirs = request.start_accepting(qp()?, &Options::default())?;
///
/// let wait_for = |pending: &Pending| {
///     use rustix::event::{PollFd, PollFlags, poll};
///     poll(&mut [PollFd::new(pending, PollFlags::IN)], None)
/// };
/// let ours = loop {
///     match ours.try_finish()? {
///         Some(connection) => break connection,
///         None => wait_for(&ours)?,
///     };
/// };
/// let theirs = loop {
///     match theirs.try_finish()? {
///         Some(connection) => break connection,
///         None => wait_for(&theirs)?,
///     };
/// };
/// assert_eq!(ours.peer_addr(), theirs.local_addr());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pending(Option<Unfinished>);

#[derive(Debug)]
struct Unfinished {
    /// Goes first: when the queue pair goes, the peer has been told.
    port: Port,
    end: End,
}

/// Which end this is.
#[derive(Debug)]
enum End {
    /// The one that asked.
    Connecting(PreparedQueuePair),
    /// The one that was asked, and what the peer's program said.
    Accepting(QueuePair, Vec<u8>),
}

impl Pending {
    pub(super) fn connecting(port: Port, qp: PreparedQueuePair) -> Pending {
        let end = End::Connecting(qp);
        Pending(Some(Unfinished { port, end }))
    }

    pub(super) fn accepting(port: Port, qp: QueuePair, private_data: Vec<u8>) -> Pending {
        let end = End::Accepting(qp, private_data);
        Pending(Some(Unfinished { port, end }))
    }

    /// The connection, waiting until it is there.
    ///
    /// # Errors
    /// See [`Error`]. The queue pair is gone then.
    pub fn finish(mut self) -> Result<Connection, Error> {
        wait::endlessly(|| self.finish_until(None))
    }

    /// The connection, if it is there by now.
    ///
    /// # Errors
    /// See [`Error`]: there will be none, and the queue pair is gone. [`Error::Finished`] when this has
    /// returned the connection, or an error, before.
    pub fn try_finish(&mut self) -> Result<Option<Connection>, Error> {
        self.finish_until(Some(Instant::now()))
    }

    fn finish_until(&mut self, until: Option<Instant>) -> Result<Option<Connection>, Error> {
        let unfinished = self.0.as_ref().ok_or(Error::Finished)?;
        loop {
            let Some(event) = unfinished.port.next(until)? else {
                return Ok(None);
            };
            let is_awaited = match unfinished.end {
                End::Connecting(_) => event.kind == EventKind::ConnectResponse,
                End::Accepting(..) => event.kind == EventKind::Established,
            };
            match event.kind {
                // The peer may have to find it anew, and does.
                EventKind::AddressChange => continue,
                _ if is_awaited => {}
                _ => {
                    self.0 = None;
                    return Err(Error::of(event));
                }
            }
            let Unfinished { port, end } = self.0.take().ok_or(Error::Finished)?;
            return Ok(Some(match end {
                End::Accepting(qp, private_data) => Connection::new(port, qp, private_data),
                End::Connecting(qp) => {
                    let said = of_connection(event.details);
                    let qp = qp.connect_by(&port.id, None)?;
                    port.id.ready()?;
                    Connection::new(port, qp, said.private_data)
                }
            }));
        }
    }
}

impl AsFd for Pending {
    /// # Panics
    /// When it is finished: there is no descriptor any more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Some(unfinished) => unfinished.port.fd(),
            None => panic!("the connection is there, and has a descriptor of its own"),
        }
    }
}
