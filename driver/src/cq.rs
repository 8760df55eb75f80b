//! Completion queues and completion channels (10.2.6, 11.2.5, 11.4.2).

mod entries;

use crate::engine;
use crate::event_queue::{AckCount, EventQueue, lock};
use crate::events::{AsyncEvent, AsyncEvents, EventObject, EventType};
use crate::moderation::Moderation;
use crate::qp::Qp;
use entries::{Added, Entries};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_net::{now, wall};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;
use urxe_proto::work::{Completion, WcStatus};

/// The most entries a completion queue may have.
pub const MAX_CQE: u32 = 4_194_303;

/// Completion queues whose completions have come; each at most once for each time it was armed.
pub type Channel = EventQueue<Arc<Cq>>;

/// What a completion queue is created with (11.2.8.1).
#[derive(Clone, Debug, Default)]
pub struct CqInit {
    /// How many entries it holds at least, 1 to [`MAX_CQE`].
    pub capacity: u32,
    /// What it notifies, if anything.
    pub channel: Option<Arc<Channel>>,
    /// Whether it notes when each completion was made.
    pub stamps: bool,
    /// Whether the oldest entry gives way to one for which there is no room, instead of the whole
    /// queue being of no more use.
    pub ignores_overrun: bool,
}

/// When a completion was made; zeros where the queue does not note it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// By the device's clock: nanoseconds since the machine started.
    pub device: u64,
    /// By the calendar: nanoseconds since 1970.
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

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    entries: Entries<(Completion, Stamp)>,
    channel: Option<Arc<Channel>>,
    stamps: bool,
    ignores_overrun: bool,
    events: Arc<AsyncEvents>,
    /// The queue pairs that complete here, for when it overruns.
    users: Mutex<Vec<Weak<Qp>>>,
    /// Events from the channel that the program has not acknowledged.
    pub channel_acks: AckCount,
    /// Asynchronous events that the program has not acknowledged.
    pub async_acks: AckCount,
    /// A number for whoever made this queue, to find its own object by.
    pub tag: AtomicUsize,
}

/// Why a completion queue cannot be made, or made larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CqError {
    /// No entries, or too many: EINVAL.
    #[error("a completion queue has 1 to {MAX_CQE} entries")]
    Size,
    /// More completions wait than the new size holds: EINVAL.
    #[error("more completions wait than the new size holds")]
    InUse,
    /// The entries cannot be had: ENOMEM.
    #[error("not enough memory for the entries of the completion queue: ask for fewer")]
    NoMemory,
}

impl CqError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Size | Self::InUse => libc::EINVAL,
            Self::NoMemory => libc::ENOMEM,
        }
    }
}

/// The queue is full: a completion was lost, and the queue is of no more use (11.6.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overrun;

impl Cq {
    /// A new queue. Its errors go to `events`.
    ///
    /// # Errors
    /// [`CqError::Size`] and [`CqError::NoMemory`].
    pub fn new(init: CqInit, events: Arc<AsyncEvents>) -> Result<Arc<Cq>, CqError> {
        check_size(init.capacity)?;
        let entries = Entries::new(init.capacity as usize).map_err(|_| CqError::NoMemory)?;
        Ok(Arc::new(Cq {
            entries,
            channel: init.channel,
            stamps: init.stamps,
            ignores_overrun: init.ignores_overrun,
            events,
            users: Mutex::new(Vec::new()),
            channel_acks: AckCount::default(),
            async_acks: AckCount::default(),
            tag: AtomicUsize::new(0),
        }))
    }

    /// How many entries it holds.
    pub fn capacity(&self) -> u32 {
        self.entries.capacity() as u32
    }

    /// The channel that it notifies.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// Takes the oldest completions, up to the length of `into`, and returns how many. When there
    /// are none, does the work of the network first.
    pub fn poll(&self, into: &mut [Option<Completion>]) -> usize {
        if into.is_empty() {
            return 0;
        }
        let taken = polled(|| {
            let taken = self
                .entries
                .take_many(into.len(), |index, (completion, _)| {
                    into[index] = Some(completion);
                });
            (taken > 0).then_some(taken)
        });
        taken.unwrap_or(0)
    }

    /// Takes the oldest completion with its stamp. When there is none, does the work of the network
    /// first.
    pub fn poll_stamped(&self) -> Option<(Completion, Stamp)> {
        polled(|| self.entries.take())
    }

    /// Asks for one notification on the channel, of the next completion, or of the next that is
    /// solicited or an error (11.4.2.2). Asking for the former overrides the latter.
    pub fn arm(&self, solicited_only: bool) {
        engine::get().send_gathered();
        if self.entries.arm(solicited_only) {
            engine::get().cq_armed();
        }
    }

    /// Changes the number of entries. The completions that wait stay.
    ///
    /// # Errors
    /// See [`CqError`].
    pub fn resize(&self, capacity: u32) -> Result<(), CqError> {
        check_size(capacity)?;
        match self.entries.resize(capacity as usize) {
            None => Err(CqError::InUse),
            Some(resized) => resized.map_err(|_| CqError::NoMemory),
        }
    }

    /// Sets how long notifications may be delayed. One that is delayed now comes by the new rule
    /// with the next completion, or at the time that was set for it.
    pub fn moderate(&self, moderation: Moderation) {
        self.entries.moderate(moderation);
    }

    /// Adds a completion, and notifies if that was asked for.
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
            Added::NotifyAt(at) => engine::get().delay_notification(self, at),
            Added::Overran { first } => {
                if first {
                    self.tell_of_overrun();
                }
                return Err(Overrun);
            }
        }
        Ok(())
    }

    fn tell_of_overrun(self: &Arc<Self>) {
        tracing::warn!(capacity = self.capacity(), "a completion queue overran");
        self.events.push(AsyncEvent {
            kind: EventType::CqErr,
            object: EventObject::Cq(Arc::clone(self)),
        });
        engine::get().cq_overran(Arc::clone(self));
    }

    /// The time that was set for a delayed notification has come.
    pub(crate) fn delay_ended(self: &Arc<Self>, now: Time) {
        if self.entries.delay_ended(now) {
            self.notify();
        }
    }

    /// Gives the notification that was asked for.
    fn notify(self: &Arc<Self>) {
        engine::get().cq_disarmed();
        if let Some(channel) = &self.channel {
            channel.push(Arc::clone(self));
        }
    }

    /// Removes, and returns, the completions of a queue pair that is being destroyed or reset, which
    /// the program must not see any more (11.2.4.5).
    pub fn purge(&self, qpn: Qpn) -> Vec<Completion> {
        let purged = self.entries.purge(|(completion, _)| completion.qpn == qpn);
        purged.iter().map(|(completion, _)| *completion).collect()
    }

    pub(crate) fn attach(&self, qp: &Arc<Qp>) {
        let mut users = lock(&self.users);
        // Looking for those that are gone as seldom as the list doubles keeps the cost of each low.
        if users.len() == users.capacity() {
            users.retain(|user| user.strong_count() > 0);
            let live = users.len();
            users.reserve(live.max(1));
        }
        users.push(Arc::downgrade(qp));
    }

    /// The queue pairs that complete here.
    pub(crate) fn users(&self) -> Vec<Arc<Qp>> {
        lock(&self.users).iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends its notifications and events, and waits until the program is done with those that it
    /// has. To be called before the last reference goes.
    pub fn retire(&self) {
        if self.entries.disarm() {
            engine::get().cq_disarmed();
        }
        if let Some(channel) = &self.channel {
            channel.retract(|cq| std::ptr::eq(&**cq, self));
        }
        self.events.retract_cq(self);
        self.channel_acks.wait();
        self.async_acks.wait();
    }

    /// The number that whoever made it has set, see [`Cq::tag`].
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }
}

/// What `take` finds, at once or after doing the work of the network.
fn polled<T>(mut take: impl FnMut() -> Option<T>) -> Option<T> {
    let engine = engine::get();
    let _call = engine.call();
    engine.polled();
    let taken = take().or_else(|| {
        engine.poll();
        take()
    });
    if taken.is_some() {
        engine.linger();
    }
    taken
}

fn check_size(capacity: u32) -> Result<(), CqError> {
    if (1..=MAX_CQE).contains(&capacity) {
        Ok(())
    } else {
        Err(CqError::Size)
    }
}
