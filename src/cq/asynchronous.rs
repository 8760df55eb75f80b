//! Futures and streams of completions.
#![forbid(unsafe_code)]

use super::CompletionQueue;
use crate::completion::Completion;
use crate::error::Result;
use crate::work_ring::WorkId;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

impl CompletionQueue {
    /// Takes the oldest completion of a work request that no future has posted, and waits until
    /// there is one.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().next().await?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
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
