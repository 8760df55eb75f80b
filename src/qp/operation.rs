//! Work requests as futures.
//!
//! A future that is dropped leaves its work request to the queue pair, which owns the memory until
//! the completion. There is no cancellation of a posted work request in verbs.
#![forbid(unsafe_code)]

use super::core::Core;
use super::destination::Destination;
use crate::buffer::LocalBuffer;
use crate::completion::Completion;
use crate::cq::CompletionQueue;
use crate::error::Result;
use crate::work::{PostError, ReceiveRequest, SendRequest};
use crate::work_ring::{Kind, WorkId, WorkQueue};
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The future of a work request: posts it when there is room in the queue, and returns its
/// completion.
///
/// Nothing is posted before the first poll. Dropping it before it has posted discards the work
/// request. Dropping it later discards the completion: the work request takes effect, and its
/// memory stays registered until then.
///
/// ```
/// # use urxe::prelude::*;
/// # async_io::block_on(async {
/// let (a, b) = urxe::testing::pair()?;
/// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
/// let operation = a.execute(SendRequest::write(b"hello", &memory.remote()));
/// operation.await?.result?;
/// assert_eq!(memory.to_vec(..5)?, b"hello");
/// # Ok::<(), urxe::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Operation<'a> {
    core: &'a Core,
    state: State<'a>,
}

enum State<'a> {
    /// The work request, and the place in the list of those that wait for room.
    Unposted(Request<'a>, Option<u64>),
    Posted(WorkId),
    /// It has returned its result. The buffer is that of a work request that was not posted.
    Finished(Option<LocalBuffer>),
}

/// A work request of either queue.
pub(super) enum Request<'a> {
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

    /// Posts the request, which keeps its memory on an error.
    fn post(&mut self, core: &Core) -> std::result::Result<WorkId, PostError> {
        let kind = Kind::Awaited;
        match self {
            Request::Send(request, to) => {
                let memory = mem::take(&mut request.memory);
                let operation = request.operation;
                let given = SendRequest { operation, memory };
                core.post_one_send(given, *to, kind, &mut request.memory)
            }
            Request::Receive(request) => {
                let memory = mem::take(&mut request.memory);
                let wr_id = request.wr_id;
                let given = ReceiveRequest { wr_id, memory };
                core.post_one_receive(given, kind, &mut request.memory)
            }
        }
    }

    /// The memory of a refused request, if it is a buffer.
    fn take_buffer(&mut self) -> Option<LocalBuffer> {
        let memory = match self {
            Request::Send(request, _) => &mut request.memory,
            Request::Receive(request) => &mut request.memory,
        };
        mem::take(memory).into_buffer()
    }
}

impl<'a> Operation<'a> {
    pub(super) fn new(core: &'a Core, request: Request<'a>) -> Self {
        let state = State::Unposted(request, None);
        Operation { core, state }
    }

    /// Takes the buffer of a work request that was not posted.
    pub(super) fn take_refused(&mut self) -> Option<LocalBuffer> {
        match &mut self.state {
            State::Finished(buffer) => buffer.take(),
            State::Unposted(..) | State::Posted(_) => None,
        }
    }

    fn cq(&self, queue: WorkQueue) -> &'a CompletionQueue {
        match queue {
            WorkQueue::Send => self.core.send_cq(),
            WorkQueue::Receive => self.core.recv_cq(),
        }
    }

    /// Posts the request, or adds the task to those that wait for room.
    fn poll_post(
        core: &Core,
        request: &mut Request<'a>,
        ticket: &mut Option<u64>,
        context: &Context<'_>,
    ) -> Poll<std::result::Result<WorkId, PostError>> {
        let room = core.outstanding.room(request.queue());
        let mut posted = request.post(core);
        if is_full(&posted) {
            // A place may have become free before the task was in the list, so it tries again.
            *ticket = Some(room.wait(*ticket, context.waker()));
            posted = request.post(core);
        }
        if is_full(&posted) {
            return Poll::Pending;
        }
        if let Some(ticket) = ticket.take() {
            match posted {
                Ok(_) => drop(room.remove(ticket)),
                Err(_) => room.leave(ticket),
            }
        }
        Poll::Ready(posted)
    }
}

/// Returns whether the queue had no room, but will have.
fn is_full(posted: &std::result::Result<WorkId, PostError>) -> bool {
    match posted {
        // A queue with capacity 0 never has room.
        Err(PostError::QueueFull { capacity }) => *capacity > 0,
        _ => false,
    }
}

impl Future for Operation<'_> {
    type Output = Result<Completion>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let core = self.core;
        let id = match &mut self.state {
            State::Unposted(request, ticket) => {
                match ready!(Self::poll_post(core, request, ticket, context)) {
                    Ok(id) => {
                        self.state = State::Posted(id);
                        id
                    }
                    Err(error) => {
                        self.state = State::Finished(request.take_buffer());
                        return Poll::Ready(Err(error.into()));
                    }
                }
            }
            State::Posted(id) => *id,
            State::Finished(_) => panic!("the operation was polled after it was ready"),
        };
        let completion = ready!(self.cq(id.queue()).poll_operation(id, context))?;
        self.state = State::Finished(None);
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
            State::Unposted(_, None) | State::Finished(_) => {}
        }
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Unposted(..) => "not posted",
            State::Posted(_) => "posted",
            State::Finished(_) => "finished",
        };
        write!(f, "Operation({state})")
    }
}
