//! Pools of buffers of one size.
#![forbid(unsafe_code)]

use crate::blocks::{Block, Blocks};
use crate::buffer::{LOCAL, LocalBuffer};
use crate::pd::ProtectionDomain;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use urxe_driver as driver;
use urxe_driver::owned::{OwnedError, OwnedRegion};

/// The alignment of the buffers of a pool, in bytes: two threads that use neighbouring buffers
/// share no cache line.
const ALIGNMENT: usize = 64;

impl ProtectionDomain {
    /// Allocates and registers a pool of `count` buffers for local use, each of `size` bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(16, 4096)?;
    /// let qp = pd.queue_pair(&cq, &cq).max_recv_wr(16).build()?;
    /// while let Some(buffer) = pool.take() {
    ///     qp.post_receive(ReceiveRequest::into(buffer))?;
    /// }
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OwnedError`]; both numbers must be at least 1.
    pub fn buffer_pool(&self, count: usize, size: usize) -> Result<BufferPool, OwnedError> {
        BufferPool::new(self.driver(), count, size)
    }
}

/// A pool of buffers of one size, with one registration.
///
/// Taking a buffer and dropping it allocate nothing. Clones refer to the same pool; the memory is
/// deregistered after the pool and all its buffers are dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let pd = context.pd();
/// let pool = pd.buffer_pool(2, 4096)?;
/// let mut buffer = pool.take().expect("two are free");
/// buffer.fill(b"hello")?;
/// let other = pool.take().expect("one is free");
/// assert!(pool.take().is_none());
/// drop(other);
/// assert_eq!(pool.available(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<Blocks>);

impl BufferPool {
    pub(crate) fn new(
        pd: &Arc<driver::Pd>,
        count: usize,
        size: usize,
    ) -> Result<BufferPool, OwnedError> {
        // An overflow asks for more memory than there is, which is the error that it gets.
        let stride = size.checked_next_multiple_of(ALIGNMENT);
        let all = stride.and_then(|stride| stride.checked_mul(count));
        let region = OwnedRegion::zeroed(pd, all.unwrap_or(usize::MAX), LOCAL)?;
        let stride = stride.unwrap_or(size);
        Ok(BufferPool(Arc::new(Blocks::new(
            region, size, stride, count,
        ))))
    }

    /// Takes a buffer, whose length is its capacity; `None` if all are in use.
    ///
    /// Its bytes are those of an earlier use, or 0.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(1, 4096)?;
    /// let buffer = pool.take().expect("one is free");
    /// assert_eq!(buffer.len(), 4096);
    /// assert!(pool.take().is_none());
    /// drop(buffer);
    /// assert!(pool.take().is_some());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn take(&self) -> Option<LocalBuffer> {
        self.0.take().map(LocalBuffer::new)
    }

    /// Takes a buffer as [`take`](BufferPool::take) does, and waits until there is one.
    ///
    /// A buffer that is dropped wakes the task that has waited longest. Another call may take the
    /// buffer before that task does; the task then keeps its place in the order. Dropping the
    /// future is safe at any time: no buffer and no wake-up is lost. It needs no runtime and no
    /// reactor.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::BufferPool;
    ///
    /// async fn reply(qp: &QueuePair, pool: &BufferPool, text: &[u8]) -> urxe::Result<()> {
    ///     let mut buffer = pool.acquire().await;
    ///     buffer.fill(text)?;
    ///     // The buffer returns to the pool when the SEND has completed.
    ///     let (result, _buffer) = qp.send(buffer).await;
    ///     result.map(drop)
    /// }
    /// # async_io::block_on(async {
    /// let (a, b) = urxe::testing::pair()?;
    /// for _ in 0..2 {
    ///     b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// }
    /// // Two tasks share one buffer: the second waits for the first.
    /// let pool = a.pd().buffer_pool(1, 64)?;
    /// let (one, two) = tokio::join!(reply(&a, &pool, b"one"), reply(&a, &pool, b"two"));
    /// one.and(two)?;
    /// assert_eq!(b.cq().next().await?.data()?, b"one");
    /// assert_eq!(b.cq().next().await?.data()?, b"two");
    /// # Ok::<(), urxe::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire(&self) -> LocalBuffer {
        LocalBuffer::new(Acquire::new(&self.0).await)
    }

    /// The number of buffers in the pool.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(2, 4096)?;
    /// let buffer = pool.take();
    /// assert_eq!(pool.available(), 1);
    /// drop(buffer);
    /// assert_eq!(pool.available(), 2);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn available(&self) -> usize {
        self.0.available()
    }

    /// The capacity of each buffer in bytes.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let pool = pd.buffer_pool(2, 100)?;
    /// assert_eq!(pool.buffer_capacity(), 100);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn buffer_capacity(&self) -> usize {
        self.0.size()
    }
}

/// See [`BufferPool::acquire`].
struct Acquire<'a> {
    blocks: &'a Arc<Blocks>,
    /// The place in the order of the tasks, while it waits.
    ticket: Option<u64>,
}

impl Acquire<'_> {
    fn new(blocks: &Arc<Blocks>) -> Acquire<'_> {
        let ticket = None;
        Acquire { blocks, ticket }
    }
}

impl Future for Acquire<'_> {
    type Output = Block;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Block> {
        let blocks = self.blocks;
        blocks.poll_take(&mut self.ticket, context.waker())
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.blocks.leave(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    /// A protection domain without a device.
    fn pd() -> Arc<driver::Pd> {
        driver::Pd::new()
    }

    #[test]
    fn threads_have_the_bytes_of_their_own_buffers_only() {
        let pool = BufferPool::new(&pd(), 2, 100).unwrap();
        let threads = [1, 2].map(|value| {
            let pool = pool.clone();
            std::thread::spawn(move || {
                for _ in 0..4 {
                    let mut buffer = pool.take().expect("one for each thread");
                    buffer[..].fill(value);
                    std::thread::yield_now();
                    assert!(buffer.iter().all(|byte| *byte == value));
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn a_buffer_of_a_pool_outlives_the_pool() {
        let pool = BufferPool::new(&pd(), 2, 8).unwrap();
        let mut buffer = pool.take().unwrap();
        drop(pool);
        buffer.fill(b"hello").unwrap();
        // A vector cannot be made of a part of the registration, so this is a copy.
        assert_eq!(buffer.into_vec(), b"hello");
    }

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Task {
        fn poll<T>(self: &Arc<Self>, future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
            let waker = Waker::from(Arc::clone(self));
            future.poll(&mut Context::from_waker(&waker))
        }

        /// Returns how often it was woken since the last call.
        fn woken(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    #[test]
    fn a_dropped_buffer_wakes_the_task_that_has_waited_longest() {
        let pool = BufferPool::new(&pd(), 1, 8).unwrap();
        let buffer = pool.take().unwrap();
        let tasks: [Arc<Task>; 2] = Default::default();
        let (mut first, mut second) = (Box::pin(pool.acquire()), Box::pin(pool.acquire()));
        assert!(tasks[0].poll(first.as_mut()).is_pending());
        assert!(tasks[1].poll(second.as_mut()).is_pending());
        drop(buffer);
        assert_eq!([tasks[0].woken(), tasks[1].woken()], [1, 0]);
        // A call that does not wait takes the buffer first: the task keeps its place.
        let buffer = pool.take().unwrap();
        assert!(tasks[0].poll(first.as_mut()).is_pending());
        drop(buffer);
        assert_eq!([tasks[0].woken(), tasks[1].woken()], [1, 0]);
        let Poll::Ready(buffer) = tasks[0].poll(first.as_mut()) else {
            panic!("the buffer is free");
        };
        assert_eq!((buffer.len(), pool.available()), (8, 0));
        drop(buffer);
        assert_eq!(tasks[1].woken(), 1);
        assert!(tasks[1].poll(second.as_mut()).is_ready());
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn a_future_that_is_dropped_passes_its_buffer_on() {
        let pool = BufferPool::new(&pd(), 1, 8).unwrap();
        let buffer = pool.take().unwrap();
        let tasks: [Arc<Task>; 3] = Default::default();
        let [mut first, mut second, mut third] = [(), (), ()].map(|()| Box::pin(pool.acquire()));
        for (task, future) in tasks.iter().zip([&mut first, &mut second, &mut third]) {
            assert!(task.poll(future.as_mut()).is_pending());
        }
        // The second one is not woken any more, and the first one passes its wake-up on.
        drop(second);
        drop(buffer);
        assert_eq!(tasks.each_ref().map(|task| task.woken()), [1, 0, 0]);
        drop(first);
        assert_eq!(tasks.each_ref().map(|task| task.woken()), [0, 0, 1]);
        assert!(tasks[2].poll(third.as_mut()).is_ready());
    }
}
