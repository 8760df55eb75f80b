//! Completion queues: the queues that report the results of work requests.
#![forbid(unsafe_code)]

mod asynchronous;

use crate::completion::Completion;
use crate::context::Context;
use crate::outstanding::Outstanding;
use crate::reactor::{Reactor, Watch};
use crate::tasks::Tasks;
use crate::wait::{self, TimedLock, lock};
use crate::work_ring::{Completed, Entry, Kind, WorkId};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use urxe_driver as driver;
use urxe_driver::cq::MAX_CQE;
use urxe_driver::tables::KeyHasher;
use urxe_proto::ids::Qpn;
use urxe_proto::work::{self, WcStatus};

/// The initial capacity of a completion queue, in completions.
const INITIAL_CAPACITY: u32 = 64;

/// The completions polled from the driver in one call.
const BATCH: usize = 16;

/// A completion queue cannot be created, or has no room for another queue pair.
///
/// ```
/// use urxe::{BuildError, CqError};
///
/// /// Whether the queue pair may be created with another completion queue.
/// fn needs_another_queue(error: &BuildError) -> bool {
///     matches!(error, BuildError::Cq(CqError::TooManyUsers))
/// }
/// assert!(needs_another_queue(&BuildError::Cq(CqError::TooManyUsers)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// No file descriptor is left for the completion channel.
    #[error(
        "a completion queue needs a file descriptor ({0}): close some files, or raise the limit \
         (`ulimit -n`)"
    )]
    Channel(#[source] io::Error),
    /// The queue pairs could complete more work requests than a completion queue holds.
    #[error(
        "the queue pairs of a completion queue can have at most {MAX_CQE} work requests in total: \
         use another completion queue, or shorter queues"
    )]
    TooManyUsers,
    /// The driver's error.
    #[error(transparent)]
    Driver(#[from] driver::cq::CqError),
}

impl CqError {
    /// The `errno` that a verbs program gets.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// assert_eq!(urxe::CqError::TooManyUsers.errno(), libc::ENOMEM);
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Self::Channel(error) => error.raw_os_error().unwrap_or(libc::EMFILE),
            Self::TooManyUsers => libc::ENOMEM,
            Self::Driver(error) => error.errno(),
        }
    }
}

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

    /// Reserves entries for the completions of another queue pair or shared receive queue.
    pub(crate) fn reserve(&self, room: u32) -> Result<Reservation, CqError> {
        let mut reserved = lock(&self.0.reserved);
        let sum = reserved.checked_add(room).filter(|sum| *sum <= MAX_CQE);
        let sum = sum.ok_or(CqError::TooManyUsers)?;
        let capacity = self.0.driver.capacity();
        if sum > capacity {
            let more = sum.max(capacity.saturating_mul(2)).min(MAX_CQE);
            self.0.driver.resize(more)?;
        }
        *reserved = sum;
        Ok(Reservation {
            cq: self.clone(),
            room,
            user: None,
        })
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

/// The queue pairs that complete in a queue.
#[derive(Debug, Default)]
struct Users {
    /// One of them, which is found without hashing. Most queues have no other.
    one: Option<(Qpn, Arc<Outstanding>)>,
    others: HashMap<Qpn, Arc<Outstanding>, BuildHasherDefault<KeyHasher>>,
}

impl Users {
    #[inline]
    fn get(&self, qpn: Qpn) -> Option<&Arc<Outstanding>> {
        match &self.one {
            Some((one, outstanding)) if *one == qpn => Some(outstanding),
            _ => self.others.get(&qpn),
        }
    }

    /// Adds a queue pair. It replaces one of the same number, which is being dropped.
    fn insert(&mut self, qpn: Qpn, outstanding: Arc<Outstanding>) {
        match &mut self.one {
            Some((one, _)) if *one != qpn => {
                self.others.insert(qpn, outstanding);
            }
            one => {
                self.others.remove(&qpn);
                *one = Some((qpn, outstanding));
            }
        }
    }

    fn remove(&mut self, qpn: Qpn) {
        match &self.one {
            Some((one, _)) if *one == qpn => self.one = None,
            _ => {
                self.others.remove(&qpn);
            }
        }
    }
}

/// A completion and the work requests that it ends. Dropping it may deregister memory, so it must
/// not be dropped while a lock is held.
struct Finished {
    completion: Completion,
    id: WorkId,
    kind: Kind,
    /// The unsignaled work requests before it.
    silent: Vec<Entry>,
    /// The queue pair, if tasks wait for room in its queues.
    awaited_room: Option<Arc<Outstanding>>,
}

impl Finished {
    /// Removes the work requests that a completion ends; `None` if they were already removed.
    #[inline(never)]
    fn of(user: &Arc<Outstanding>, completion: &work::Completion) -> Option<Self> {
        let id = WorkId::from_driver(completion.wr_id);
        let success = completion.status == WcStatus::Success;
        let Completed { entry, silent } = user.complete(id, success)?;
        Some(Finished {
            id,
            kind: entry.kind,
            completion: Completion::new(completion, entry),
            silent,
            awaited_room: user.room(id.queue()).any().then(|| Arc::clone(user)),
        })
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
}

impl Inner {
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

/// The entries of a completion queue that are reserved for a queue pair or a shared receive queue.
///
/// Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Reservation {
    cq: CompletionQueue,
    room: u32,
    user: Option<(Qpn, Arc<Outstanding>)>,
}

impl Reservation {
    /// The completion queue.
    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Registers the queue pair that uses these entries.
    pub(crate) fn attach(&mut self, qpn: Qpn, outstanding: &Arc<Outstanding>) {
        let users = &self.cq.0.users;
        let mut users = users.write().unwrap_or_else(PoisonError::into_inner);
        users.insert(qpn, Arc::clone(outstanding));
        self.user = Some((qpn, Arc::clone(outstanding)));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some((qpn, outstanding)) = &self.user {
            let users = &self.cq.0.users;
            let mut users = users.write().unwrap_or_else(PoisonError::into_inner);
            // Another queue pair may already use the number.
            if users
                .get(*qpn)
                .is_some_and(|user| Arc::ptr_eq(user, outstanding))
            {
                users.remove(*qpn);
                drop(users);
                let discarded = self.cq.0.tasks.discard(|completion| completion.qpn == *qpn);
                drop(discarded);
            }
        }
        *lock(&self.cq.0.reserved) -= self.room;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_found_until_they_are_removed() {
        let outstanding = || Arc::new(Outstanding::new(1, 1));
        let numbers = [1, 2, 3].map(Qpn::new);
        let mut users = Users::default();
        for qpn in numbers {
            users.insert(qpn, outstanding());
        }
        // The next queue pair takes the place of the first, and then its own number again.
        users.remove(numbers[0]);
        assert!(users.get(numbers[0]).is_none());
        let replacement = outstanding();
        users.insert(numbers[1], Arc::clone(&replacement));
        assert!(Arc::ptr_eq(users.get(numbers[1]).unwrap(), &replacement));
        assert!(users.get(numbers[2]).is_some());
        users.remove(numbers[1]);
        assert!(users.get(numbers[1]).is_none());
    }
}
