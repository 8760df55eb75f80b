//! Futures and streams of completions.
#![forbid(unsafe_code)]

use super::CompletionQueue;
use crate::completion::Completion;
use crate::error::Result;
use crate::outstanding::WorkId;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

impl CompletionQueue {
    /// Takes the oldest completion of a work request that no future has posted, and waits until
    /// there is one.
    ///
    /// ```
    /// # #[cfg(feature = "async-io")]
    /// # fn main() -> urxe::Result<()> { async_io::block_on(async {
    /// use urxe::prelude::*;
    ///
    /// let context = urxe::device("urxe_lo")?.open()?;
    /// let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
    /// let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    /// let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
    /// let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
    ///
    /// let memory = pd.register(64, RemoteAccess::empty())?;
    /// b.post_receive(ReceiveRequest::into(memory.slice(..)?).id(1))?;
    /// a.post_send(SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(cq.next().await?.data()?, b"hello");
    /// # Ok(())
    /// # })}
    /// # #[cfg(not(feature = "async-io"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// The error of the reactor.
    pub async fn next(&self) -> Result<Completion> {
        std::future::poll_fn(|context| self.poll_next_completion(context)).await
    }

    fn poll_next_completion(&self, context: &TaskContext<'_>) -> Poll<Result<Completion>> {
        let tasks = &self.0.tasks;
        let polled = self.poll_tasks(|| tasks.poll_unclaimed(context.waker()))?;
        polled.map(Ok)
    }

    /// Polls the completion of the operation that a future has posted.
    pub(crate) fn poll_operation(
        &self,
        id: WorkId,
        context: &TaskContext<'_>,
    ) -> Poll<Result<Completion>> {
        let tasks = &self.0.tasks;
        let polled = self.poll_tasks(|| tasks.poll(id.to_driver(), context.waker()))?;
        polled.map(Ok)
    }
}

/// See [`CompletionQueue::next`]. The stream does not end.
impl Stream for CompletionQueue {
    type Item = Result<Completion>;

    fn poll_next(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.poll_next_completion(context).map(Some)
    }
}
