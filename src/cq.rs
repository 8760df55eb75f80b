//! Completion queues: the queues that report the results of work requests.
#![forbid(unsafe_code)]

mod asynchronous;
mod error;
mod finished;
mod reservation;
mod users;

use crate::completion::Completion;
use crate::context::Context;
use crate::reactor::Watch;
use crate::tasks::Tasks;
use crate::wait::{self, TimedLock};
use crate::work_ring::{Kind, WorkId};
use finished::Finished;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use urxe_driver as driver;
use urxe_proto::ids::Qpn;
use urxe_proto::work;
use users::Users;

pub use error::CqError;
pub(crate) use reservation::Reservation;

/// The initial capacity of a completion queue, in completions.
const INITIAL_CAPACITY: u32 = 63;

/// The completions polled from the driver in one call.
const BATCH: usize = 16;

impl Context {
    /// Creates a completion queue with a completion channel of its own. (`ibv_create_cq`.)
    ///
    /// It takes no size: it grows with the queue pairs that complete in it, so it cannot overrun.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let context = urxe::device("urxe_lo")?.open()?;
    /// let (sends, receives) = (context.completion_queue()?, context.completion_queue()?);
    /// let qp = context.pd().queue_pair(&sends, &receives).build()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CqError::Channel`] if no file descriptor is left.
    pub fn completion_queue(&self) -> Result<CompletionQueue, CqError> {
        CompletionQueue::new(self)
    }
}

/// A completion queue with its completion channel. (`ibv_cq` and `ibv_comp_channel`.)
///
/// Clones refer to the same queue. Threads may share it; each completion is returned to one of
/// them.
///
/// # With an event loop
/// The descriptor becomes readable when a completion arrives after [`CompletionQueue::arm`]. An
/// event loop arms the queue, polls it until it is empty, waits for the descriptor, calls
/// [`CompletionQueue::clear`], and starts over.
///
/// # With an async runtime
/// [`CompletionQueue::next`] is a future, and the queue is a [`Stream`](futures_core::Stream) of
/// the completions of work requests that were posted with `post_send` and `post_receive`. The
/// completions of futures such as [`QueuePair::send`](crate::QueuePair::send) reach these futures,
/// whichever task or thread polls the queue. See [`reactor`](crate::reactor) for the runtimes.
///
/// A future that has been polled takes part in polling the queue for others. Poll it until it is
/// ready or drop it: while a task keeps one and polls it no more, the others may not progress.
///
/// ```
/// use std::time::Duration;
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// b.post_receive(ReceiveRequest::into(pd.buffer(8)?).id(1))?;
/// a.post_send(SendRequest::send(b"hello").id(2))?;
/// // Sleeps until there is a completion.
/// let first = cq.wait()?;
/// // Returns at once, or after the timeout.
/// let second = match cq.poll() {
///     Some(completion) => Some(completion),
///     None => cq.wait_timeout(Duration::from_secs(10))?,
/// };
/// assert_eq!(first.wr_id + second.expect("both completed").wr_id, 3);
///
/// // With an event loop: the descriptor is readable after a completion.
/// cq.arm();
/// b.post_receive(ReceiveRequest::empty())?;
/// a.post_send(SendRequest::send(b"").unsignaled())?;
/// let mut completions = Vec::new();
/// while cq.poll_into(&mut completions, 16) == 0 {
///     // Here an event loop waits for `cq.as_fd()`.
///     cq.clear()?;
///     cq.arm();
/// }
/// completions.remove(0).result?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<driver::Cq>,
    channel: Arc<driver::Channel>,
    context: Context,
    /// The queue pairs that complete here. This lock precedes all locks of the driver, and is held
    /// while completions are polled from the driver, see [`CompletionQueue::purge`].
    users: RwLock<Users>,
    /// The total number of completions that the queue pairs can have outstanding.
    reserved: Mutex<u32>,
    /// Held by the thread that takes notifications from the channel.
    taking: TimedLock,
    /// The tasks that wait for completions.
    tasks: Arc<Tasks<Completion>>,
    /// The registration with the reactor. This lock precedes all others.
    watch: Mutex<Watch>,
}

impl CompletionQueue {
    pub(crate) fn new(context: &Context) -> Result<CompletionQueue, CqError> {
        let channel = Arc::new(driver::Channel::new().map_err(CqError::Channel)?);
        let cq = context
            .driver()
            .create_cq(INITIAL_CAPACITY, Some(Arc::clone(&channel)))?;
        Ok(CompletionQueue(Arc::new(Inner {
            driver: cq,
            channel,
            context: context.clone(),
            users: RwLock::default(),
            reserved: Mutex::new(0),
            taking: TimedLock::default(),
            tasks: Arc::default(),
            watch: Mutex::default(),
        })))
    }

    /// Takes the oldest completion; `None` if there is none. (`ibv_poll_cq`.)
    ///
    /// If the queue is empty, the call first makes progress on the network.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// a.post_send(SendRequest::write(b"", &b.pd().register(1, RemoteAccess::WRITE)?.remote()))?;
    /// let completion = loop {
    ///     if let Some(completion) = a.cq().poll() {
    ///         break completion;
    ///     }
    /// };
    /// completion.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn poll(&self) -> Option<Completion> {
        if let Some(completion) = self.0.tasks.take_unclaimed() {
            return Some(completion);
        }
        loop {
            let mut oldest = None;
            let users = self.0.users();
            self.0
                .driver
                .poll_each(1, |_, completion| oldest = Some(completion));
            // Not moved out, since a move of a completion costs as much as a lock. The common case
            // is handled apart from the others for that reason too.
            let completion = oldest.as_ref()?;
            // A completion of a queue pair that is being dropped is discarded.
            let Some(user) = users.get(completion.qpn) else {
                continue;
            };
            let id = WorkId::from_driver(completion.wr_id);
            if let Some(completion) =
                user.complete_oldest(id, |entry| Completion::new(completion, entry))
            {
                return Some(completion);
            }
            let finished = Finished::of(user, completion);
            drop(users);
            if let Some(completion) = finished.and_then(|finished| self.0.deliver(finished)) {
                return Some(completion);
            }
        }
    }

    /// Takes up to `max` completions, oldest first, and appends them to `into`. (`ibv_poll_cq`.)
    ///
    /// Returns how many were appended.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// for id in 0..4 {
    ///     a.post_send(SendRequest::write(b"hello", &memory.remote()).id(id))?;
    /// }
    /// let mut completions = Vec::new();
    /// while completions.len() < 4 {
    ///     a.cq().poll_into(&mut completions, 16);
    /// }
    /// assert!(completions.iter().map(|completion| completion.wr_id).eq(0..4));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn poll_into(&self, into: &mut Vec<Completion>, max: usize) -> usize {
        let before = into.len();
        while into.len() - before < max
            && let Some(completion) = self.0.tasks.take_unclaimed()
        {
            into.push(completion);
        }
        loop {
            let left = max - (into.len() - before);
            let (taken, finished) = self.0.take(left);
            if taken == 0 {
                return into.len() - before;
            }
            into.extend(
                finished
                    .into_iter()
                    .flatten()
                    .filter_map(|finished| self.0.deliver(finished)),
            );
        }
    }

    /// Takes the oldest completion, and sleeps until there is one.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor.
    pub fn wait(&self) -> io::Result<Completion> {
        wait::without_deadline(|| self.wait_until(None))
    }

    /// Takes the oldest completion, and sleeps for at most `timeout`; `None` if none arrives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::time::Duration;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// assert!(b.cq().wait_timeout(Duration::from_millis(1))?.is_none());
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert!(b.cq().wait_timeout(Duration::from_secs(60))?.is_some());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor.
    pub fn wait_timeout(&self, timeout: Duration) -> io::Result<Option<Completion>> {
        self.wait_until(wait::deadline(timeout))
    }

    fn wait_until(&self, until: Option<Instant>) -> io::Result<Option<Completion>> {
        if let Some(completion) = self.poll() {
            return Ok(Some(completion));
        }
        // One thread waits for the notification and the others wait for that thread. A notification
        // wakes only one thread, which may return after the first of several completions.
        let Some(_taking) = self.0.taking.acquire(until) else {
            return Ok(self.poll());
        };
        loop {
            self.arm();
            if let Some(completion) = self.poll() {
                return Ok(Some(completion));
            }
            if wait::next(&self.0.channel, until)?.is_none() {
                return Ok(self.poll());
            }
            // The notification may have been requested for a task.
            self.0.tasks.notify();
        }
    }

    /// Requests a notification: the descriptor becomes readable at the next completion.
    /// (`ibv_req_notify_cq`.)
    ///
    /// A completion that is already in the queue causes one at once, unless an earlier notification
    /// announced it: poll until the queue is empty after each notification.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// b.cq().arm();
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// // An event loop waits for the descriptor.
    /// poll(&mut [PollFd::new(b.cq(), PollFlags::IN)], None).map_err(std::io::Error::from)?;
    /// b.cq().clear()?;
    /// assert_eq!(b.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn arm(&self) {
        self.0.driver.arm(false);
    }

    /// Requests a notification for the next solicited completion or error. (`ibv_req_notify_cq`
    /// with `solicited_only`.)
    ///
    /// The peer sends with [`SendRequest::solicited`](crate::SendRequest::solicited).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// b.cq().arm_solicited();
    /// for (message, is_last) in [(b"one", false), (b"two", true)] {
    ///     b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    ///     let send = SendRequest::send(message);
    ///     a.post_send(if is_last { send.solicited() } else { send })?;
    /// }
    /// // The descriptor becomes readable with the last message.
    /// poll(&mut [PollFd::new(b.cq(), PollFlags::IN)], None).map_err(std::io::Error::from)?;
    /// b.cq().clear()?;
    /// assert_eq!(b.cq().wait()?.data()?, b"one");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn arm_solicited(&self) {
        self.0.driver.arm(true);
    }

    /// Takes the pending notifications without waiting, so that the descriptor is no longer
    /// readable. (`ibv_get_cq_event` and `ibv_ack_cq_events`.)
    ///
    /// Returns whether there were any.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// assert!(!b.cq().clear()?);
    /// b.post_receive(ReceiveRequest::empty())?;
    /// b.cq().arm();
    /// b.fail()?;
    /// // The receive completes with an error, which the notification announces.
    /// while !b.cq().clear()? {}
    /// assert!(b.cq().wait()?.result.is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the system call on the descriptor.
    pub fn clear(&self) -> io::Result<bool> {
        let now = Some(Instant::now());
        let mut any = false;
        // A waiting thread takes the notifications itself.
        if let Some(_taking) = self.0.taking.acquire(now) {
            while wait::next(&self.0.channel, now)?.is_some() {
                any = true;
            }
        }
        if any {
            self.0.tasks.notify();
        }
        Ok(any)
    }

    /// The tasks that wait for completions.
    pub(crate) fn tasks(&self) -> &Tasks<Completion> {
        &self.0.tasks
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Cq> {
        &self.0.driver
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns whether both refer to the same completion queue.
    pub(crate) fn is(&self, other: &CompletionQueue) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Calls `stop`, which ends the queue pair's work requests, and removes its completions.
    ///
    /// No thread polls during the call. Each completion has either been returned to the application
    /// or is in the result.
    pub(crate) fn purge(&self, qpn: Qpn, stop: impl FnOnce()) -> Vec<work::Completion> {
        let users = &self.0.users;
        let _polling_excluded = users.write().unwrap_or_else(PoisonError::into_inner);
        stop();
        self.0.driver.purge(qpn)
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.fd()
    }
}

impl AsRawFd for CompletionQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Inner {
    /// Locks the queue pairs that complete here, so that none of them is dropped.
    fn users(&self) -> RwLockReadGuard<'_, Users> {
        self.users.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest completions from the driver: at most `max`, and at most [`BATCH`].
    ///
    /// Returns how many, and those among them whose queue pair still exists.
    fn take(&self, max: usize) -> (usize, [Option<Finished>; BATCH]) {
        let mut batch = [None; BATCH];
        let users = self.users();
        let taken = self.driver.poll(&mut batch[..max.min(BATCH)]);
        let finished = batch.map(|completion| {
            let completion: work::Completion = completion?;
            Finished::of(users.get(completion.qpn)?, &completion)
        });
        (taken, finished)
    }

    /// Gives a completion to the future that posted the work request, or returns it.
    ///
    /// Not to be called under a lock other than `watch`, which precedes all others: it drops memory
    /// and wakes tasks.
    fn deliver(&self, finished: Finished) -> Option<Completion> {
        let Finished {
            completion,
            id,
            kind,
            silent,
            awaited_room,
        } = finished;
        if let Some(user) = awaited_room {
            user.room(id.queue()).notify(1 + silent.len());
        }
        drop(silent);
        match kind {
            Kind::Awaited => {
                // The memory of a dropped future is released here.
                let abandoned = self.tasks.complete(id.to_driver(), completion);
                drop(abandoned);
                None
            }
            Kind::Signaled | Kind::Unsignaled => Some(completion),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.driver.retire();
    }
}
