//! Completion queues and completion channels (10.2.6, 11.2.5, 11.4.2).

use crate::engine;
use crate::event_queue::{AckCount, EventQueue, lock};
use crate::events::{AsyncEvent, AsyncEvents, EventObject, EventType};
use crate::qp::Qp;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use urxe_proto::work::{Completion, WcStatus};

/// The most entries a completion queue may have.
pub const MAX_CQE: u32 = 4_194_303;

/// Completion queues whose completions have come; each at most once for each time it was armed.
pub type Channel = EventQueue<Arc<Cq>>;

/// What a program waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Armed {
    #[default]
    No,
    /// A receive whose sender asked for an event, or an error.
    Solicited,
    /// Any completion.
    Any,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
    overrun: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    ring: Mutex<Ring>,
    channel: Option<Arc<Channel>>,
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
    /// A queue of at least `capacity` entries. Its errors go to `events`, its notifications to
    /// `channel`.
    ///
    /// # Errors
    /// [`CqError::Size`].
    pub fn new(
        capacity: u32,
        channel: Option<Arc<Channel>>,
        events: Arc<AsyncEvents>,
    ) -> Result<Arc<Cq>, CqError> {
        check_size(capacity)?;
        let mut entries = VecDeque::new();
        entries
            .try_reserve_exact(capacity as usize)
            .map_err(|_| CqError::NoMemory)?;
        let ring = Ring {
            entries,
            capacity: capacity as usize,
            armed: Armed::No,
            overrun: false,
        };
        Ok(Arc::new(Cq {
            ring: Mutex::new(ring),
            channel,
            events,
            users: Mutex::new(Vec::new()),
            channel_acks: AckCount::default(),
            async_acks: AckCount::default(),
            tag: AtomicUsize::new(0),
        }))
    }

    /// How many entries it holds.
    pub fn capacity(&self) -> u32 {
        lock(&self.ring).capacity as u32
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
        let engine = engine::get();
        engine.polled();
        let taken = self.take(into);
        if taken > 0 {
            return taken;
        }
        engine.poll();
        self.take(into)
    }

    fn take(&self, into: &mut [Option<Completion>]) -> usize {
        let mut ring = lock(&self.ring);
        let taken = ring.entries.len().min(into.len());
        for slot in &mut into[..taken] {
            *slot = ring.entries.pop_front();
        }
        taken
    }

    /// Asks for one notification on the channel, of the next completion, or of the next that is
    /// solicited or an error (11.4.2.2). Asking for the former overrides the latter.
    pub fn arm(&self, solicited_only: bool) {
        let mut ring = lock(&self.ring);
        let before = ring.armed;
        ring.armed = match (before, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        drop(ring);
        if before == Armed::No {
            engine::get().cq_armed();
        }
    }

    /// Changes the number of entries. The completions that wait stay.
    ///
    /// # Errors
    /// See [`CqError`].
    pub fn resize(&self, capacity: u32) -> Result<(), CqError> {
        check_size(capacity)?;
        let mut ring = lock(&self.ring);
        if ring.entries.len() > capacity as usize {
            return Err(CqError::InUse);
        }
        let more = (capacity as usize).saturating_sub(ring.entries.len());
        ring.entries
            .try_reserve_exact(more)
            .map_err(|_| CqError::NoMemory)?;
        ring.capacity = capacity as usize;
        Ok(())
    }

    /// Adds a completion, and notifies if that was asked for.
    pub(crate) fn push(
        self: &Arc<Self>,
        completion: Completion,
        solicited: bool,
    ) -> Result<(), Overrun> {
        let mut ring = lock(&self.ring);
        if ring.entries.len() >= ring.capacity {
            let first = !std::mem::replace(&mut ring.overrun, true);
            drop(ring);
            if first {
                tracing::warn!(capacity = self.capacity(), "a completion queue overran");
                self.events.push(AsyncEvent {
                    kind: EventType::CqErr,
                    object: EventObject::Cq(Arc::clone(self)),
                });
                engine::get().cq_overran(Arc::clone(self));
            }
            return Err(Overrun);
        }
        let solicited = solicited || completion.status != WcStatus::Success;
        ring.entries.push_back(completion);
        let notify = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if notify {
            ring.armed = Armed::No;
        }
        drop(ring);
        if notify {
            engine::get().cq_disarmed();
            if let Some(channel) = &self.channel {
                channel.push(Arc::clone(self));
            }
        }
        Ok(())
    }

    /// Removes the completions of a queue pair that is being destroyed or reset, which the program
    /// must not see any more (11.2.4.5).
    pub(crate) fn purge(&self, qp: &Qp) {
        lock(&self.ring)
            .entries
            .retain(|completion| completion.qpn != qp.qpn());
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
        let was_armed = std::mem::take(&mut lock(&self.ring).armed) != Armed::No;
        if was_armed {
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

fn check_size(capacity: u32) -> Result<(), CqError> {
    if (1..=MAX_CQE).contains(&capacity) {
        Ok(())
    } else {
        Err(CqError::Size)
    }
}
