//! Completion queues and completion channels (10.2.6, 11.2.5, 11.4.2).

use crate::engine;
use crate::event_queue::{AckCount, EventQueue, lock};
use crate::events::{AsyncEvent, AsyncEvents, EventObject, EventType};
use crate::moderation::{Moderation, Moderator, Verdict};
use crate::net::{now, wall};
use crate::qp::Qp;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
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
    entries: VecDeque<(Completion, Stamp)>,
    capacity: usize,
    armed: Armed,
    moderator: Moderator,
    overrun: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    ring: Mutex<Ring>,
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
        let capacity = init.capacity as usize;
        let mut entries = VecDeque::new();
        entries
            .try_reserve_exact(capacity)
            .map_err(|_| CqError::NoMemory)?;
        let ring = Ring {
            entries,
            capacity,
            armed: Armed::No,
            moderator: Moderator::default(),
            overrun: false,
        };
        Ok(Arc::new(Cq {
            ring: Mutex::new(ring),
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
        let taken = polled(|| {
            let mut ring = lock(&self.ring);
            let taken = ring.entries.len().min(into.len());
            for slot in &mut into[..taken] {
                *slot = ring.entries.pop_front().map(|(completion, _)| completion);
            }
            (taken > 0).then_some(taken)
        });
        taken.unwrap_or(0)
    }

    /// Takes the oldest completion with its stamp. When there is none, does the work of the network
    /// first.
    pub fn poll_stamped(&self) -> Option<(Completion, Stamp)> {
        polled(|| lock(&self.ring).entries.pop_front())
    }

    /// Asks for one notification on the channel, of the next completion, or of the next that is
    /// solicited or an error (11.4.2.2). Asking for the former overrides the latter.
    pub fn arm(&self, solicited_only: bool) {
        engine::get().send_gathered();
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

    /// Sets how long notifications may be delayed. One that is delayed now comes by the new rule
    /// with the next completion, or at the time that was set for it.
    pub fn moderate(&self, moderation: Moderation) {
        lock(&self.ring).moderator.set(moderation);
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
        let mut ring = lock(&self.ring);
        let full = ring.entries.len() >= ring.capacity;
        if full && self.ignores_overrun {
            ring.entries.pop_front();
        } else if full {
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
        ring.entries.push_back((completion, stamp));
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if !wanted {
            return Ok(());
        }
        // With no room left there is nothing that another completion could add.
        let full = ring.entries.len() >= ring.capacity;
        match ring.moderator.judge(full, now) {
            Verdict::Notify => self.notify(ring),
            Verdict::WaitUntil(at) => {
                drop(ring);
                engine::get().delay_notification(self, at);
            }
            Verdict::Wait => {}
        }
        Ok(())
    }

    /// The time that was set for a delayed notification has come.
    pub(crate) fn delay_ended(self: &Arc<Self>, now: Time) {
        let mut ring = lock(&self.ring);
        if ring.moderator.is_due(now) && ring.armed != Armed::No {
            ring.moderator.reset();
            self.notify(ring);
        }
    }

    /// Gives the notification that was asked for.
    fn notify(self: &Arc<Self>, mut ring: MutexGuard<'_, Ring>) {
        ring.armed = Armed::No;
        drop(ring);
        engine::get().cq_disarmed();
        if let Some(channel) = &self.channel {
            channel.push(Arc::clone(self));
        }
    }

    /// Removes, and returns, the completions of a queue pair that is being destroyed or reset, which
    /// the program must not see any more (11.2.4.5).
    pub fn purge(&self, qpn: Qpn) -> Vec<Completion> {
        let mut purged = Vec::new();
        lock(&self.ring).entries.retain(|(completion, _)| {
            let stays = completion.qpn != qpn;
            if !stays {
                purged.push(*completion);
            }
            stays
        });
        purged
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

/// What `take` finds, at once or after doing the work of the network.
fn polled<T>(mut take: impl FnMut() -> Option<T>) -> Option<T> {
    let engine = engine::get();
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
