//! Completion queues: where programs learn that work requests have ended.
#![forbid(unsafe_code)]

use crate::completion::Completion;
use crate::context::Context;
use crate::outstanding::{Completed, Outstanding, WorkId};
use crate::wait::{self, Turn, lock};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use urxe_driver as driver;
use urxe_driver::cq::MAX_CQE;
use urxe_proto::ids::Qpn;
use urxe_proto::work::{self, WcStatus};

/// The room that a completion queue begins with.
const FIRST_ROOM: u32 = 64;

/// How many completions are taken from the driver at a time.
const BATCH: usize = 16;

/// Why a completion queue cannot be made, or cannot take one more queue pair.
#[derive(Debug, thiserror::Error)]
pub enum CqError {
    /// No descriptor is left.
    #[error(
        "a completion queue needs a file descriptor ({0}): close some files, or raise the limit \
         (`ulimit -n`)"
    )]
    Channel(#[source] io::Error),
    /// Its queue pairs could complete more than it can hold.
    #[error(
        "the queue pairs of a completion queue have at most {MAX_CQE} work requests together: use \
         another completion queue, or shorter queues"
    )]
    TooManyUsers,
    /// What the driver says.
    #[error(transparent)]
    Driver(#[from] driver::cq::CqError),
}

impl CqError {
    /// The `errno` that a verbs program would get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Channel(error) => error.raw_os_error().unwrap_or(libc::EMFILE),
            Self::TooManyUsers => libc::ENOMEM,
            Self::Driver(error) => error.errno(),
        }
    }
}

/// A completion queue, together with its completion channel. Clones are the same one. Threads may
/// share it; each completion goes to one of them. (`ibv_cq` and `ibv_comp_channel`.)
///
/// # With an event loop
/// Its descriptor becomes readable when a completion comes after [`CompletionQueue::arm`]. So the
/// loop arms it, polls until there is nothing more, waits for the descriptor, calls
/// [`CompletionQueue::clear`], and begins anew.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<driver::Cq>,
    channel: Arc<driver::Channel>,
    context: Context,
    /// The queue pairs that complete here. Taken before all locks of the driver, and held while
    /// completions are taken from there, see [`CompletionQueue::withdraw`].
    users: RwLock<HashMap<Qpn, Arc<Outstanding>>>,
    /// How many completions its queue pairs can have outstanding, together.
    reserved: Mutex<u32>,
    /// Held by the thread that takes notifications.
    taking: Turn,
}

impl CompletionQueue {
    pub(crate) fn new(context: &Context) -> Result<CompletionQueue, CqError> {
        let channel = Arc::new(driver::Channel::new().map_err(CqError::Channel)?);
        let cq = context
            .driver()
            .create_cq(FIRST_ROOM, Some(Arc::clone(&channel)))?;
        Ok(CompletionQueue(Arc::new(Inner {
            driver: cq,
            channel,
            context: context.clone(),
            users: RwLock::default(),
            reserved: Mutex::new(0),
            taking: Turn::default(),
        })))
    }

    /// Takes the oldest completion, if there is one, doing the work of the network when there is
    /// none. (`ibv_poll_cq`.)
    pub fn poll(&self) -> Option<Completion> {
        loop {
            let (taken, [ended]) = self.0.take(1);
            // A completion of a queue pair that is being dropped is nobody's any more.
            if taken == 0 || ended.is_some() {
                return ended.map(Ended::into_completion);
            }
        }
    }

    /// Takes the oldest completions, at most `max` of them, adds them to `into`, and returns how
    /// many. (`ibv_poll_cq`.)
    pub fn poll_into(&self, into: &mut Vec<Completion>, max: usize) -> usize {
        let before = into.len();
        loop {
            let left = max - (into.len() - before);
            let (taken, ended) = self.0.take::<BATCH>(left);
            if taken == 0 {
                return into.len() - before;
            }
            into.extend(ended.into_iter().flatten().map(Ended::into_completion));
        }
    }

    /// Takes the oldest completion, sleeping until there is one.
    ///
    /// # Errors
    /// What the kernel says of the descriptor.
    pub fn wait(&self) -> io::Result<Completion> {
        wait::endlessly(|| self.wait_until(None))
    }

    /// Takes the oldest completion, sleeping for at most `timeout`; `None` when none came.
    ///
    /// # Errors
    /// What the kernel says of the descriptor.
    pub fn wait_timeout(&self, timeout: Duration) -> io::Result<Option<Completion>> {
        self.wait_until(wait::deadline(timeout))
    }

    fn wait_until(&self, until: Option<Instant>) -> io::Result<Option<Completion>> {
        if let Some(completion) = self.poll() {
            return Ok(Some(completion));
        }
        // One thread waits for the notification, the others for that thread: a notification wakes
        // one only, which may be content with the first of several completions.
        let Some(_taking) = self.0.taking.take(until) else {
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
        }
    }

    /// Asks that the descriptor become readable at the next completion. Polling comes after it, for
    /// completions that were there before make no notification. (`ibv_req_notify_cq`.)
    pub fn arm(&self) {
        self.0.driver.arm(false);
    }

    /// Asks the same for the next completion that is solicited, with
    /// [`SendRequest::solicited`](crate::SendRequest::solicited), or an error. (`ibv_req_notify_cq`
    /// with `solicited_only`.)
    pub fn arm_solicited(&self) {
        self.0.driver.arm(true);
    }

    /// Takes the notifications that made the descriptor readable, without waiting, and returns
    /// whether there were any. (`ibv_get_cq_event` and `ibv_ack_cq_events`.)
    ///
    /// # Errors
    /// What the kernel says of the descriptor.
    pub fn clear(&self) -> io::Result<bool> {
        let now = Some(Instant::now());
        let mut any = false;
        // A thread that waits takes them itself.
        if let Some(_taking) = self.0.taking.take(now) {
            while wait::next(&self.0.channel, now)?.is_some() {
                any = true;
            }
        }
        Ok(any)
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Cq> {
        &self.0.driver
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// Whether the two are the same completion queue.
    pub(crate) fn is(&self, other: &CompletionQueue) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Removes the completions that a queue pair has after `end`, which sees to it that no more come.
    /// None of them is with a thread that polls meanwhile: each has been told to the program, or is
    /// among those returned.
    pub(crate) fn withdraw(&self, qpn: Qpn, end: impl FnOnce()) -> Vec<work::Completion> {
        let users = &self.0.users;
        let _nobody_polls = users.write().unwrap_or_else(PoisonError::into_inner);
        end();
        self.0.driver.purge(qpn)
    }

    /// Makes room for the completions of one more queue pair.
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

/// What the driver says, and what that has ended.
struct Ended {
    completion: work::Completion,
    id: WorkId,
    completed: Completed,
}

impl Ended {
    /// The program's view of it. Not to be called under a lock, see [`Completed`].
    fn into_completion(self) -> Completion {
        Completion::new(&self.completion, self.id, self.completed)
    }
}

impl Inner {
    /// Takes the oldest completions from the driver, at most `max` and `N`. Returns how many, and
    /// what the ones have ended that are not of a queue pair that is gone.
    fn take<const N: usize>(&self, max: usize) -> (usize, [Option<Ended>; N]) {
        let mut batch = [None; N];
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        let taken = self.driver.poll(&mut batch[..max.min(N)]);
        let ended = batch.map(|completion| {
            let completion: work::Completion = completion?;
            let id = WorkId::from_driver(completion.wr_id);
            let user = users.get(&completion.qpn)?;
            let completed = user.complete(id, completion.status == WcStatus::Success)?;
            Some(Ended {
                completion,
                id,
                completed,
            })
        });
        (taken, ended)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.driver.retire();
    }
}

/// A queue pair's room in a completion queue, or that of a shared receive queue, which is given back
/// when this is dropped.
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

    /// Tells the completion queue whose completions will come.
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
            // The number may be another queue pair's already.
            if users
                .get(qpn)
                .is_some_and(|user| Arc::ptr_eq(user, outstanding))
            {
                users.remove(qpn);
            }
        }
        *lock(&self.cq.0.reserved) -= self.room;
    }
}
