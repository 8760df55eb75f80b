//! Futures and streams of completions.
#![forbid(unsafe_code)]

use super::{BATCH, CompletionQueue};
use crate::completion::Completion;
use crate::error::Result;
use crate::reactor::Reactor;
use crate::wait::lock;
use crate::work_ring::WorkId;
use futures_core::Stream;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

impl CompletionQueue {
    /// Selects the reactor for the futures of this queue.
    ///
    /// Without this call they use that of the features, see [`reactor`](crate::reactor).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::reactor::AsyncIo;
    ///
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// b.cq().use_reactor(AsyncIo);
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().next().await?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn use_reactor(&self, reactor: impl Reactor + 'static) {
        lock(&self.0.watch).use_reactor(Arc::new(reactor));
        self.0.tasks.notify();
    }

    /// Calls `poll`, and makes progress on the queue if no other task does.
    fn poll_tasks<T>(&self, mut poll: impl FnMut() -> Poll<T>) -> io::Result<Poll<T>> {
        if let Poll::Ready(value) = poll() {
            return Ok(Poll::Ready(value));
        }
        if self.0.tasks.is_watched() {
            return Ok(Poll::Pending);
        }
        self.watch()?;
        Ok(poll())
    }

    /// Takes all completions, and registers with the reactor for the next one.
    fn watch(&self) -> io::Result<()> {
        let inner = &*self.0;
        // Another task that is polled now waits here: what this one finds is also for that one.
        let mut watch = lock(&inner.watch);
        if inner.tasks.is_watched() {
            return Ok(());
        }
        let shared = Waker::from(Arc::clone(&inner.tasks));
        for _ in 0..2 {
            inner.tasks.start_watching();
            self.distribute();
            while inner.channel.take().is_some() {}
            self.arm();
            // The completions that arrived before the queue was armed cause no notification.
            self.distribute();
            match watch.poll(self.as_fd(), &shared) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    inner.tasks.fail();
                    return Err(error);
                }
            }
        }
        // More completions arrive. The task yields to the others instead of repeating.
        inner.tasks.notify();
        Ok(())
    }

    /// Takes all completions from the driver, and gives them to the tasks that wait for them.
    fn distribute(&self) {
        loop {
            let (taken, finished) = self.0.take(BATCH);
            if taken == 0 {
                return;
            }
            for finished in finished.into_iter().flatten() {
                if let Some(completion) = self.0.deliver(finished) {
                    self.0.tasks.add_unclaimed(completion);
                }
            }
        }
    }

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
