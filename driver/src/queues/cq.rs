//! Completion queues and completion channels (10.2.6, 11.2.5, 11.4.2).

mod entries;
mod monitor;

pub(crate) use monitor::CqMonitor;

use crate::counters::ResourceCount;
use crate::event_queue::{AckCount, EventQueue};
use crate::events::{AsyncEvents, EventObject, EventSender, EventType, Origin};
use crate::scheduling::affinity::CqAffinity;
use crate::scheduling::moderation::Moderation;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use entries::{Added, Entries, Request};
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use urxe_net::{now, wall};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;
use urxe_proto::work::{Completion, WcStatus};

/// The most entries a completion queue may have, 2^22 - 1.
pub const MAX_CQE: u32 = 4_194_303;

/// A completion channel: completion queues with a notification. A queue appears once for each time
/// it was armed.
pub type Channel = EventQueue<Arc<Cq>>;

/// Attributes for the creation of a completion queue (11.2.8.1).
#[derive(Clone, Debug, Default)]
pub struct CqInit {
    /// The least number of entries, 1 to [`MAX_CQE`]. The queue has the next number of the form
    /// 2^n - 1, as with the kernel's rxe: programs with a queue that is too small by little rely on
    /// adapters that round up too.
    pub capacity: u32,
    /// The completion channel, if any.
    pub channel: Option<Arc<Channel>>,
    /// Whether completions carry timestamps.
    pub stamps: bool,
    /// Whether a new completion replaces the oldest one when the queue is full. Otherwise it is
    /// lost, and the queue pairs and work queues that complete to the queue fail.
    pub ignores_overrun: bool,
}

/// The time of a completion; zeros if the queue records no timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// The device's clock: nanoseconds since the machine started.
    pub device: u64,
    /// The wall clock: nanoseconds since 1970.
    pub wall: u64,
}

impl Stamp {
    fn now() -> Self {
        Stamp {
            device: now().0,
            wall: wall(),
        }
    }
}

/// A user of a completion queue that the table of queue pairs does not have: a work queue.
pub(crate) trait CqUser: Debug + Send + Sync {
    /// Moves it to the error state, since its completion queue overran.
    fn fail(&self);
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    entries: Entries<(Completion, Stamp)>,
    channel: Option<Arc<Channel>>,
    stamps: bool,
    ignores_overrun: bool,
    /// Whether an overrun was reported, and the queue pairs that complete here have not all failed
    /// since: their further overruns are the same one.
    is_overrun: AtomicBool,
    /// The work queues that complete here.
    work_queues: Mutex<Vec<Weak<dyn CqUser>>>,
    events: EventSender,
    monitor: Arc<CqMonitor<Cq>>,
    /// The affinity of this queue and of its queue pairs.
    pub(crate) affinity: CqAffinity,
    _counted: Option<ResourceCount>,
    /// Events of the channel that the application has not acknowledged.
    pub channel_acks: AckCount,
    /// Its identity in asynchronous events.
    pub origin: Arc<Origin>,
}

/// An error in the creation of a completion queue, or in its resizing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CqError {
    /// The number of entries is 0, or exceeds [`MAX_CQE`]: EINVAL.
    #[error("a completion queue has 1 to {MAX_CQE} entries")]
    Size,
    /// The queue holds more completions than the new size: EINVAL.
    #[error("more completions wait than the new size holds")]
    InUse,
    /// The entries cannot be allocated: ENOMEM.
    #[error("not enough memory for the entries of the completion queue: ask for fewer")]
    NoMemory,
}

impl CqError {
    /// The errno that verbs return.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Size | Self::InUse => libc::EINVAL,
            Self::NoMemory => libc::ENOMEM,
        }
    }
}

/// The queue is full: a completion was lost (11.6.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overrun;

impl Cq {
    /// Creates a completion queue. Its errors are reported to `events`. `counted` includes it in
    /// the counts of a device.
    ///
    /// # Errors
    /// [`CqError::Size`] and [`CqError::NoMemory`].
    pub(crate) fn with(
        init: CqInit,
        events: &Arc<AsyncEvents>,
        monitor: Arc<CqMonitor<Cq>>,
        counted: Option<ResourceCount>,
    ) -> Result<Arc<Cq>, CqError> {
        let entries = Entries::new(actual_size(init.capacity)?).map_err(|_| CqError::NoMemory)?;
        Ok(Arc::new(Cq {
            entries,
            channel: init.channel,
            stamps: init.stamps,
            ignores_overrun: init.ignores_overrun,
            is_overrun: AtomicBool::new(false),
            work_queues: Mutex::default(),
            events: EventSender::new(events),
            monitor,
            affinity: CqAffinity::default(),
            _counted: counted,
            channel_acks: AckCount::default(),
            origin: Origin::new(),
        }))
    }

    /// The number of entries that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.entries.capacity() as u32
    }

    /// The completion channel.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// Passes the oldest completions, up to `most`, to `each` with their index, and returns their
    /// number.
    #[inline]
    pub(crate) fn take_many(&self, most: usize, mut each: impl FnMut(usize, Completion)) -> usize {
        self.entries
            .take_many(most, |index, (completion, _)| each(index, completion))
    }

    /// Takes the oldest completion with its timestamp.
    pub(crate) fn take(&self) -> Option<(Completion, Stamp)> {
        self.entries.take()
    }

    /// Requests one notification on the channel: for the next completion, or with `solicited_only`
    /// for the next that is solicited or an error (11.4.2.2). A request for any completion
    /// overrides one for solicited ones. A completion in the queue that was added without a
    /// notification counts as the next one.
    pub(crate) fn request_notification(self: &Arc<Self>, solicited_only: bool) {
        match self.entries.arm(solicited_only) {
            Request::Armed => self.monitor.armed(),
            Request::Renewed => self.monitor.rearmed(),
            Request::Notify { was_armed: true } => self.notify(),
            Request::Notify { was_armed: false } => self.push_event(),
        }
    }

    /// Changes the number of entries, which is rounded up as at creation. Completions in the queue
    /// stay.
    ///
    /// # Errors
    /// See [`CqError`].
    pub fn resize(&self, capacity: u32) -> Result<(), CqError> {
        match self.entries.resize(actual_size(capacity)?) {
            None => Err(CqError::InUse),
            Some(resized) => resized.map_err(|_| CqError::NoMemory),
        }
    }

    /// Sets how long notifications may be delayed. A notification that is delayed already is
    /// delivered by the new rule with the next completion, or at the time that was set for it.
    pub fn moderate(&self, moderation: Moderation) {
        self.entries.moderate(moderation);
    }

    /// Adds a completion, and delivers a notification if one was requested.
    pub(crate) fn push(
        self: &Arc<Self>,
        completion: Completion,
        solicited: bool,
    ) -> Result<(), Overrun> {
        let stamp = match self.stamps {
            true => Stamp::now(),
            false => Stamp::default(),
        };
        let solicited = solicited || completion.status != WcStatus::Success;
        let entry = (completion, stamp);
        match self
            .entries
            .add(entry, solicited, self.ignores_overrun, now)
        {
            Added::Quiet => {}
            Added::Notify => self.notify(),
            Added::NotifyAt(at) => self.monitor.delay(self, at),
            Added::Overran => {
                if !self.is_overrun.swap(true, Ordering::AcqRel) {
                    self.report_overrun();
                }
                return Err(Overrun);
            }
        }
        Ok(())
    }

    /// Raises the event of an overrun, and has the engine fail the queue pairs and work queues that
    /// complete to the queue.
    fn report_overrun(self: &Arc<Self>) {
        tracing::warn!(capacity = self.capacity(), "a completion queue overran");
        let origin = Arc::clone(&self.origin);
        self.events.send(EventType::CqErr, EventObject::Cq(origin));
        self.monitor.overran(Arc::clone(self));
    }

    /// Fails the queue pairs and work queues that complete to the queue, after an overrun. `fail`
    /// fails the queue pairs.
    pub(crate) fn fail_users(&self, fail: impl FnOnce()) {
        fail();
        let work_queues = lock(&self.work_queues);
        for queue in work_queues.iter().filter_map(Weak::upgrade) {
            queue.fail();
        }
        drop(work_queues);
        self.is_overrun.store(false, Ordering::Release);
    }

    /// Adds a work queue that completes here.
    pub(crate) fn add_work_queue(&self, queue: Weak<dyn CqUser>) {
        lock(&self.work_queues).push(queue);
    }

    /// Removes a work queue. When this returns, no thread fails it.
    pub(crate) fn remove_work_queue(&self, queue: &Weak<dyn CqUser>) {
        lock(&self.work_queues).retain(|listed| !Weak::ptr_eq(listed, queue));
    }

    /// Returns the number of work queues that complete here.
    #[cfg(test)]
    pub(crate) fn work_queues(&self) -> usize {
        lock(&self.work_queues).len()
    }

    /// Where the queue's events go, and those of its work queues.
    pub(crate) fn events(&self) -> &EventSender {
        &self.events
    }

    /// Delivers a delayed notification whose time has come.
    pub(crate) fn delay_ended(self: &Arc<Self>, now: Time) {
        self.entries.delay_ended(now, || self.notify());
    }

    /// Delivers the notification that was requested.
    fn notify(self: &Arc<Self>) {
        self.monitor.disarmed();
        self.push_event();
    }

    #[inline]
    fn push_event(self: &Arc<Self>) {
        if let Some(channel) = &self.channel {
            channel.push(Arc::clone(self));
        }
    }

    /// Removes and returns the completions of a queue pair that is being destroyed or reset. The
    /// application must not see them any more (11.2.4.5).
    pub fn purge(&self, qpn: Qpn) -> Vec<Completion> {
        let purged = self.entries.purge(|(completion, _)| completion.qpn == qpn);
        purged.iter().map(|(completion, _)| *completion).collect()
    }

    /// Withdraws the queue's notifications and events, and waits until the application has
    /// acknowledged those that it has taken. Must be called before the last reference is dropped.
    pub fn retire(&self) {
        if self.entries.disarm() {
            self.monitor.disarmed();
        }
        if let Some(channel) = &self.channel {
            channel.extract_if(|cq| std::ptr::eq(&**cq, self));
        }
        self.channel_acks.wait();
        self.events.end(&self.origin);
    }
}

/// Returns the number of entries of a queue that is to have `least` entries.
fn actual_size(least: u32) -> Result<usize, CqError> {
    match (1..=MAX_CQE).contains(&least) {
        true => Ok((least + 1).next_power_of_two() as usize - 1),
        false => Err(CqError::Size),
    }
}
