//! Work requests as futures.
//!
//! A future that is dropped leaves its work request to the queue pair, which owns the memory until
//! the completion. There is no cancellation of a posted work request in verbs.
#![forbid(unsafe_code)]

use super::connected::{PreparedQueuePair, QueuePair};
use super::core::Core;
use super::datagram::DatagramQueuePair;
use super::destination::Destination;
use crate::buffer::LocalBuffer;
use crate::completion::{Completion, Done};
use crate::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::mr::{LocalSlice, LocalWord, RemoteRegion, RemoteWord};
use crate::work::{PostError, ReceiveRequest, SendRequest};
use crate::work_ring::{Kind, WorkId, WorkQueue};
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::Ordering;
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

/// The memory of a [`Transfer`]: a [`LocalBuffer`] or a [`LocalSlice`].
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::TransferBuffer;
///
/// # async_io::block_on(async {
/// let (a, b) = urxe::testing::pair()?;
/// async fn store<B: TransferBuffer>(
///     qp: &QueuePair,
///     data: B,
///     place: &RemoteRegion,
/// ) -> urxe::Result<B> {
///     let (written, data) = qp.write(data, place).await;
///     written?;
///     Ok(data)
/// }
/// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
/// let data = a.pd().buffer_from(b"hello".to_vec())?;
/// store(&a, data, &memory.remote()).await?;
/// assert_eq!(memory.to_vec(..5)?, b"hello");
/// # Ok::<(), urxe::Error>(())
/// # }).unwrap();
/// ```
pub trait TransferBuffer: sealed::Lend + Unpin {}

impl TransferBuffer for LocalBuffer {}
impl TransferBuffer for LocalSlice {}

mod sealed {
    use super::{LocalBuffer, LocalSlice};
    use crate::work::{ScatterList, SendData};

    pub trait Lend {
        /// Takes the memory for a work request.
        fn lend(&mut self) -> Lent;

        /// Stores the buffer that the work request returned.
        fn restore(&mut self, returned: Option<LocalBuffer>);
    }

    /// The memory of a work request of any kind.
    pub enum Lent {
        Buffer(LocalBuffer),
        Slice(LocalSlice),
    }

    impl From<Lent> for SendData<'_> {
        fn from(lent: Lent) -> Self {
            match lent {
                Lent::Buffer(buffer) => buffer.into(),
                Lent::Slice(slice) => slice.into(),
            }
        }
    }

    impl From<Lent> for ScatterList {
        fn from(lent: Lent) -> Self {
            match lent {
                Lent::Buffer(buffer) => buffer.into(),
                Lent::Slice(slice) => slice.into(),
            }
        }
    }

    impl Lend for LocalBuffer {
        fn lend(&mut self) -> Lent {
            Lent::Buffer(std::mem::take(self))
        }

        fn restore(&mut self, returned: Option<LocalBuffer>) {
            *self = returned.unwrap_or_default();
        }
    }

    impl Lend for LocalSlice {
        fn lend(&mut self) -> Lent {
            Lent::Slice(self.clone())
        }

        fn restore(&mut self, _: Option<LocalBuffer>) {}
    }
}

/// The future of an operation with one buffer, which it returns with the result.
///
/// A [`LocalBuffer`] is the work request's own until the result. If the reactor fails, the work
/// request keeps the buffer until its completion, and the future returns one without memory.
///
/// See [`Operation`] for what dropping it does.
///
/// ```
/// # use urxe::prelude::*;
/// # async_io::block_on(async {
/// let (a, b) = urxe::testing::pair()?;
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// let transfer = a.send(a.pd().buffer_from(b"hello".to_vec())?);
/// let (sent, buffer) = transfer.await;
/// sent?;
/// // The buffer is the program's again.
/// assert_eq!(*buffer, *b"hello");
/// # Ok::<(), urxe::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct Transfer<'a, B = LocalSlice> {
    operation: Operation<'a>,
    buffer: Option<B>,
}

impl<'a, B: TransferBuffer> Transfer<'a, B> {
    fn new(
        core: &'a Core,
        mut buffer: B,
        request: impl FnOnce(sealed::Lent) -> Request<'a>,
    ) -> Self {
        Transfer {
            operation: Operation::new(core, request(buffer.lend())),
            buffer: Some(buffer),
        }
    }
}

impl<B: TransferBuffer> Future for Transfer<'_, B> {
    type Output = (Result<Done>, B);

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let completion = ready!(Pin::new(&mut self.operation).poll(context));
        let (result, returned) = match completion {
            Ok(completion) => (completion.result.map_err(Error::from), completion.buffer),
            Err(error) => match &mut self.operation.state {
                State::Finished(buffer) => (Err(error), buffer.take()),
                State::Unposted(..) | State::Posted(_) => (Err(error), None),
            },
        };
        let mut buffer = self.buffer.take().expect("the operation was ready once");
        buffer.restore(returned);
        Poll::Ready((result, buffer))
    }
}

impl QueuePair {
    /// Posts a work request when there is room in the send queue, and returns its completion.
    ///
    /// The request is signaled in any case.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// a.execute(SendRequest::send_with_imm(b"", 42)).await?.result?;
    /// assert_eq!(b.cq().next().await?.result?.imm, Some(42));
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
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
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// let (outbox, inbox) = (a.pd().buffer_from(b"hello".to_vec())?, b.pd().buffer(64)?);
    /// let ((sent, _outbox), (received, inbox)) = tokio::join!(a.send(outbox), b.receive(inbox));
    /// sent?;
    /// received?;
    /// assert_eq!(*inbox, *b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A [`PostError`], a [`WorkError`](crate::WorkError) or the error of the reactor, as an
    /// [`Error`].
    pub fn send<B: TransferBuffer>(&self, buffer: B) -> Transfer<'_, B> {
        self.transfer(buffer, SendRequest::send)
    }

    /// Writes the buffer to the start of the peer's memory.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// let (written, _buffer) =
    ///     a.write(a.pd().buffer_from(b"hello".to_vec())?, &memory.remote()).await;
    /// written?;
    /// assert_eq!(memory.to_vec(..5)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`QueuePair::send`].
    pub fn write<B: TransferBuffer>(&self, buffer: B, to: &RemoteRegion) -> Transfer<'_, B> {
        self.transfer(buffer, |data| SendRequest::write(data, to))
    }

    /// Reads from the start of the peer's memory until the buffer has its length.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register_vec(b"hello".to_vec(), RemoteAccess::READ)?;
    /// let (read, copy) = a.read(a.pd().buffer(5)?, &memory.remote()).await;
    /// read?;
    /// assert_eq!(*copy, *b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`QueuePair::send`].
    pub fn read<B: TransferBuffer>(&self, buffer: B, from: &RemoteRegion) -> Transfer<'_, B> {
        self.transfer(buffer, |into| SendRequest::read(into, from))
    }

    /// Adds `add` to the peer's word, modulo 2^64, and returns its old value, which is also in
    /// `result`.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// let counter = b.pd().register(8, RemoteAccess::ATOMIC)?;
    /// let word = counter.remote().word(0)?;
    /// let result = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
    /// assert_eq!(a.fetch_add(&result, word, 5).await?, 0);
    /// assert_eq!(a.compare_swap(&result, word, 5, 9).await?, 5);
    /// assert_eq!(a.fetch_add(&result, word, 0).await?, 9);
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`QueuePair::send`].
    pub async fn fetch_add(&self, result: &LocalWord, word: RemoteWord, add: u64) -> Result<u64> {
        self.atomic(result, SendRequest::fetch_add(result, word, add))
            .await
    }

    /// Stores `swap` in the peer's word if that equals `compare`, and returns its old value, which
    /// is also in `result`.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// let lock = b.pd().register(8, RemoteAccess::ATOMIC)?;
    /// let result = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
    /// let word = lock.remote().word(0)?;
    /// assert_eq!(a.compare_swap(&result, word, 0, 1).await?, 0);
    /// // The lock is taken, so a second attempt leaves it as it is.
    /// assert_eq!(a.compare_swap(&result, word, 0, 2).await?, 1);
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`QueuePair::send`].
    pub async fn compare_swap(
        &self,
        result: &LocalWord,
        word: RemoteWord,
        compare: u64,
        swap: u64,
    ) -> Result<u64> {
        let request = SendRequest::compare_swap(result, word, compare, swap);
        self.atomic(result, request).await
    }

    async fn atomic(&self, result: &LocalWord, request: SendRequest<'_>) -> Result<u64> {
        self.execute(request).await?.result?;
        Ok(result.load(Ordering::Acquire))
    }

    fn transfer<B: TransferBuffer>(
        &self,
        buffer: B,
        request: impl FnOnce(sealed::Lent) -> SendRequest<'static>,
    ) -> Transfer<'_, B> {
        Transfer::new(&self.core, buffer, |lent| {
            Request::Send(request(lent), None)
        })
    }

    /// Receives a message into the buffer. The length of a [`LocalBuffer`] is then that of the
    /// message.
    ///
    /// It is posted when there is room in the receive queue. Dropping the future does not take the
    /// receive back: the next message is received into it and is lost.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// // The receive is posted when the future is first polled; the SEND waits for it.
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// let (received, message) = b.receive(b.pd().buffer(64)?).await;
    /// received?;
    /// assert_eq!(*message, *b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`QueuePair::send`]. A queue pair with a shared receive queue has no receives of its
    /// own.
    pub fn receive<B: TransferBuffer>(&self, buffer: B) -> Transfer<'_, B> {
        Transfer::new(&self.core, buffer, |lent| {
            Request::Receive(ReceiveRequest::into(lent))
        })
    }
}

impl PreparedQueuePair {
    /// The protection domain.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build()?;
    /// qp.post_receive(ReceiveRequest::into(qp.pd().buffer(4096)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }
}

impl QueuePair {
    /// The protection domain.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let qp = b.into_queue_pair();
    /// qp.post_receive(ReceiveRequest::into(qp.pd().buffer(4096)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }

    /// The completion queue of the sends.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(b"hello", &memory.remote()))?;
    /// a.send_cq().wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn send_cq(&self) -> &CompletionQueue {
        self.core.send_cq()
    }

    /// The completion queue of the receives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.recv_cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn recv_cq(&self) -> &CompletionQueue {
        self.core.recv_cq()
    }
}

impl DatagramQueuePair {
    /// The protection domain.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// a.post_receive(ReceiveRequest::into(a.pd().buffer(GRH_BYTES + 64)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }

    /// The completion queue of sends.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello"))?;
    /// a.send_cq().wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn send_cq(&self) -> &CompletionQueue {
        self.core.send_cq()
    }

    /// The completion queue of receives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(b.recv_cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn recv_cq(&self) -> &CompletionQueue {
        self.core.recv_cq()
    }

    /// Posts a datagram when there is room in the send queue, and returns its completion.
    ///
    /// `request` is a [`SendRequest::send`] or [`SendRequest::send_with_imm`].
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let to_b = a.destination(&b.address())?;
    /// a.execute(&to_b, SendRequest::send(b"hello")).await?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`QueuePair::execute`].
    pub fn execute<'a>(&'a self, to: &'a Destination, request: SendRequest<'a>) -> Operation<'a> {
        Operation::new(&self.core, Request::Send(request.signaled(), Some(to)))
    }

    /// Receives a datagram into the buffers, and returns its completion.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    /// # runtime.block_on(async {
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let to_b = a.destination(&b.address())?;
    /// let receive = b.receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?));
    /// // The receive is posted first, since a datagram without one is dropped.
    /// let (received, sent) =
    ///     tokio::join!(receive, a.execute(&to_b, SendRequest::send(b"hello")));
    /// sent?.result?;
    /// assert_eq!(received?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As for [`QueuePair::receive`].
    pub fn receive(&self, request: ReceiveRequest) -> Operation<'_> {
        Operation::new(&self.core, Request::Receive(request))
    }
}
