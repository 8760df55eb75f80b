//! The operations of queue pairs as futures.
#![forbid(unsafe_code)]

use super::connected::QueuePair;
use super::datagram::DatagramQueuePair;
use super::destination::Destination;
use super::operation::{Operation, Request};
use super::transfer::{Transfer, TransferBuffer, sealed};
use crate::error::Result;
use crate::mr::{LocalWord, RemoteRegion, RemoteWord};
use crate::work::{ReceiveRequest, SendRequest};
use std::sync::atomic::Ordering;

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
    /// A [`PostError`](crate::PostError) or the error of the reactor, as an
    /// [`Error`](crate::Error). The completion has the error of the work request.
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
    /// A [`PostError`](crate::PostError), a [`WorkError`](crate::WorkError) or the error of the
    /// reactor, as an [`Error`](crate::Error).
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

    /// Receives a message into the buffer. The length of a [`LocalBuffer`](crate::LocalBuffer) is
    /// then that of the message.
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

impl DatagramQueuePair {
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
