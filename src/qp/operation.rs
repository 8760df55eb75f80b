//! Work requests as futures.
//!
//! A future that is dropped leaves its work request to the queue pair, which owns the memory until
//! the completion. There is no cancellation of a posted work request in verbs.
#![forbid(unsafe_code)]

use super::{Core, DatagramQueuePair, Destination, Posted, PreparedQueuePair, QueuePair};
use crate::completion::{Completion, Done};
use crate::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::mr::{LocalSlice, RemoteRegion};
use crate::outstanding::{Kind, WorkId, WorkQueue};
use crate::work::{PostError, ReceiveRequest, SendRequest};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The future of a work request: posts it when there is room in the queue, and returns its
/// completion.
///
/// Nothing is posted before the first poll. Dropping it before it has posted discards the work
/// request. Dropping it later discards the completion: the work request takes effect, and its
/// memory stays registered until then.
#[must_use = "a future does nothing until it is polled"]
pub struct Operation<'a> {
    core: &'a Core,
    state: State<'a>,
}

enum State<'a> {
    /// The work request, and the place in the list of those that wait for room.
    Unposted(Request<'a>, Option<u64>),
    Posted(WorkId),
    Finished,
}

enum Request<'a> {
    Send(SendRequest<'a>, Option<&'a Destination>),
    Receive(ReceiveRequest),
}

impl Request<'_> {
    fn queue(&self) -> WorkQueue {
        match self {
            Request::Send(..) => WorkQueue::Send,
            Request::Receive(_) => WorkQueue::Receive,
        }
    }
}

impl<'a> Operation<'a> {
    fn new(core: &'a Core, request: Request<'a>) -> Self {
        let state = State::Unposted(request, None);
        Operation { core, state }
    }

    fn cq(&self, queue: WorkQueue) -> &'a CompletionQueue {
        match queue {
            WorkQueue::Send => self.core.send_cq(),
            WorkQueue::Receive => self.core.recv_cq(),
        }
    }

    /// Posts the request. Returns it if the queue is full.
    fn post(&self, request: Request<'a>) -> Result<Attempt<'a>> {
        let (posted, rejected) = match request {
            Request::Send(request, to) => {
                let posted = self.core.post_awaited(request, to);
                let (posted, request) = posted.split();
                (posted, request.map(|request| Request::Send(request, to)))
            }
            Request::Receive(request) => {
                let posted = self.core.post_one_receive(request, Kind::Awaited);
                let (posted, request) = posted.split();
                (posted, request.map(Request::Receive))
            }
        };
        match (posted, rejected) {
            (Ok(id), _) => Ok(Attempt::Posted(id)),
            (Err(PostError::QueueFull { capacity }), Some(request)) if capacity > 0 => {
                Ok(Attempt::Full(request))
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Posts the request, or adds the task to those that wait for room.
    fn poll_post(
        &mut self,
        request: Request<'a>,
        mut ticket: Option<u64>,
        context: &Context<'_>,
    ) -> Poll<Result<WorkId>> {
        let room = self.core.outstanding.room(request.queue());
        let mut attempt = self.post(request);
        if let Ok(Attempt::Full(request)) = attempt {
            // A place may have become free before the task was in the list, so it tries again.
            ticket = Some(room.wait(ticket, context.waker()));
            attempt = self.post(request);
        }
        match attempt {
            Ok(Attempt::Full(request)) => {
                self.state = State::Unposted(request, ticket);
                Poll::Pending
            }
            Ok(Attempt::Posted(id)) => {
                if let Some(ticket) = ticket {
                    room.remove(ticket);
                }
                Poll::Ready(Ok(id))
            }
            Err(error) => {
                if let Some(ticket) = ticket {
                    room.leave(ticket);
                }
                Poll::Ready(Err(error))
            }
        }
    }
}

/// The result of an attempt to post.
enum Attempt<'a> {
    Posted(WorkId),
    Full(Request<'a>),
}

impl<R> Posted<R> {
    fn split(self) -> (std::result::Result<WorkId, PostError>, Option<R>) {
        let id = match (self.last, self.error) {
            (Some(id), None) => Ok(id),
            (_, Some(error)) => Err(error),
            (None, None) => unreachable!("one work request is posted, or fails"),
        };
        (id, self.rejected)
    }
}

impl Future for Operation<'_> {
    type Output = Result<Completion>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = match std::mem::replace(&mut self.state, State::Finished) {
            State::Unposted(request, ticket) => {
                let id = ready!(self.poll_post(request, ticket, context))?;
                self.state = State::Posted(id);
                id
            }
            State::Posted(id) => {
                self.state = State::Posted(id);
                id
            }
            State::Finished => panic!("the operation was polled after it was ready"),
        };
        let completion = ready!(self.cq(id.queue()).poll_operation(id, context))?;
        self.state = State::Finished;
        Poll::Ready(Ok(completion))
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        match &self.state {
            State::Unposted(request, Some(ticket)) => {
                self.core.outstanding.room(request.queue()).leave(*ticket);
            }
            State::Posted(id) => {
                let completion = self.cq(id.queue()).tasks().remove(id.to_driver());
                drop(completion);
            }
            State::Unposted(_, None) | State::Finished => {}
        }
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Unposted(..) => "not posted",
            State::Posted(_) => "posted",
            State::Finished => "finished",
        };
        write!(f, "Operation({state})")
    }
}

/// The future of an operation with one buffer, which it returns with the result.
///
/// See [`Operation`] for what dropping it does.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct Transfer<'a> {
    operation: Operation<'a>,
    buffer: Option<LocalSlice>,
}

impl<'a> Transfer<'a> {
    fn new(core: &'a Core, request: Request<'a>, buffer: LocalSlice) -> Self {
        Transfer {
            operation: Operation::new(core, request),
            buffer: Some(buffer),
        }
    }
}

impl Future for Transfer<'_> {
    type Output = (Result<Done>, LocalSlice);

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let completion = ready!(Pin::new(&mut self.operation).poll(context));
        let result = completion.and_then(|completion| completion.result.map_err(Error::from));
        let buffer = self.buffer.take();
        Poll::Ready((result, buffer.expect("the operation was ready once")))
    }
}

impl QueuePair {
    /// Posts a work request when there is room in the send queue, and returns its completion.
    ///
    /// The request is signaled in any case.
    ///
    /// # Errors
    /// A [`PostError`] or the error of the reactor, as an [`Error`]. The completion has the error
    /// of the work request.
    pub fn execute<'a>(&'a self, request: SendRequest<'a>) -> Operation<'a> {
        Operation::new(&self.core, Request::Send(request.signaled(), None))
    }

    /// Sends a message into the peer's next receive, and returns the buffer when the peer has
    /// acknowledged it.
    ///
    /// ```
    /// # #[cfg(feature = "async-io")]
    /// # fn main() -> urxe::Result<()> { async_io::block_on(async {
    /// use urxe::prelude::*;
    ///
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr();
    /// let client = std::thread::spawn(move || -> urxe::Result<()> {
    ///     async_io::block_on(async {
    ///         let connection = urxe::connect(address).await?;
    ///         let qp = connection.queue_pair();
    ///         let message = qp.pd().register_vec(b"hello".to_vec(), RemoteAccess::empty())?;
    ///         let (sent, _message) = qp.send(message.slice(..)?).await;
    ///         sent?;
    ///         Ok(())
    ///     })
    /// });
    /// let connection = listener.accept().await?;
    /// let qp = connection.queue_pair();
    /// let inbox = qp.pd().register(64, RemoteAccess::empty())?;
    /// let (received, inbox) = qp.receive(inbox.slice(..)?).await;
    /// let mut message = vec![0; received?.byte_len as usize];
    /// inbox.read(0, &mut message)?;
    /// assert_eq!(message, b"hello");
    /// client.join().unwrap()?;
    /// # Ok(())
    /// # })}
    /// # #[cfg(not(feature = "async-io"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// A [`PostError`], a [`WorkError`](crate::WorkError) or the error of the reactor, as an
    /// [`Error`].
    pub fn send(&self, buffer: LocalSlice) -> Transfer<'_> {
        self.transfer(SendRequest::send(buffer.clone()), buffer)
    }

    /// Writes the buffer to the start of the peer's memory.
    ///
    /// # Errors
    /// As for [`QueuePair::send`].
    pub fn write(&self, buffer: LocalSlice, to: &RemoteRegion) -> Transfer<'_> {
        self.transfer(SendRequest::write(buffer.clone(), to), buffer)
    }

    /// Reads from the start of the peer's memory until the buffer is full.
    ///
    /// # Errors
    /// As for [`QueuePair::send`].
    pub fn read(&self, buffer: LocalSlice, from: &RemoteRegion) -> Transfer<'_> {
        self.transfer(SendRequest::read(buffer.clone(), from), buffer)
    }

    fn transfer(&self, request: SendRequest<'static>, buffer: LocalSlice) -> Transfer<'_> {
        Transfer::new(&self.core, Request::Send(request, None), buffer)
    }

    /// Receives a message into the buffer.
    ///
    /// It is posted when there is room in the receive queue. Dropping the future does not take the
    /// receive back: the next message is received into it and is lost.
    ///
    /// # Errors
    /// As for [`QueuePair::send`]. A queue pair with a shared receive queue has no receives of its
    /// own.
    pub fn receive(&self, buffer: LocalSlice) -> Transfer<'_> {
        let request = ReceiveRequest::into(buffer.clone());
        Transfer::new(&self.core, Request::Receive(request), buffer)
    }
}

impl PreparedQueuePair {
    /// The protection domain.
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }
}

impl QueuePair {
    /// The protection domain.
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }

    /// The completion queue of the sends.
    pub fn send_cq(&self) -> &CompletionQueue {
        self.core.send_cq()
    }

    /// The completion queue of the receives.
    pub fn recv_cq(&self) -> &CompletionQueue {
        self.core.recv_cq()
    }
}

impl DatagramQueuePair {
    /// Posts a datagram when there is room in the send queue, and returns its completion.
    ///
    /// `request` is a [`SendRequest::send`] or [`SendRequest::send_with_imm`].
    ///
    /// # Errors
    /// As for [`QueuePair::execute`].
    pub fn execute<'a>(&'a self, to: &'a Destination, request: SendRequest<'a>) -> Operation<'a> {
        Operation::new(&self.core, Request::Send(request.signaled(), Some(to)))
    }

    /// Receives a datagram into the buffers, and returns its completion.
    ///
    /// # Errors
    /// As for [`QueuePair::receive`].
    pub fn receive(&self, request: ReceiveRequest) -> Operation<'_> {
        Operation::new(&self.core, Request::Receive(request))
    }
}
