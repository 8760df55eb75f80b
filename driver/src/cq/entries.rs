//! The completions of a queue, and which of them the program wants to hear of.

use crate::moderation::{Moderation, Moderator, Verdict};
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use std::collections::{TryReserveError, VecDeque};
use urxe_proto::time::Time;

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

/// The oldest first.
#[derive(Debug)]
pub(super) struct Entries<E> {
    ring: Mutex<Ring<E>>,
    /// How many there are, for a poll that finds none not to take the lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Ring<E> {
    entries: VecDeque<E>,
    capacity: usize,
    armed: Armed,
    moderator: Moderator,
    overrun: bool,
}

/// What comes of a new entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// The notification that was asked for is to be given: nobody asks for one any more.
    Notify,
    /// It is delayed, at most until then.
    NotifyAt(Time),
    /// Nobody wants to hear of it, or not yet.
    Quiet,
    /// There was no room: the entry is lost.
    Overran {
        /// None was lost before.
        first: bool,
    },
}

impl<E: Copy> Entries<E> {
    pub(super) fn new(capacity: usize) -> Result<Self, TryReserveError> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(capacity)?;
        Ok(Entries {
            ring: Mutex::new(Ring {
                entries,
                capacity,
                armed: Armed::No,
                moderator: Moderator::default(),
                overrun: false,
            }),
            count: AtomicUsize::new(0),
        })
    }

    pub(super) fn capacity(&self) -> usize {
        lock(&self.ring).capacity
    }

    pub(super) fn take(&self) -> Option<E> {
        if self.is_empty() {
            return None;
        }
        let mut ring = lock(&self.ring);
        let taken = ring.entries.pop_front();
        self.note_count(&ring);
        taken
    }

    /// Who has asked for a notification sees all that were added before.
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn note_count(&self, ring: &MutexGuard<'_, Ring<E>>) {
        self.count.store(ring.entries.len(), Ordering::Release);
    }

    /// Gives as many as there are to `each`, up to `most`. Returns how many.
    pub(super) fn take_many(&self, most: usize, mut each: impl FnMut(usize, E)) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut ring = lock(&self.ring);
        let taken = ring.entries.len().min(most);
        for (index, entry) in ring.entries.drain(..taken).enumerate() {
            each(index, entry);
        }
        self.note_count(&ring);
        taken
    }

    /// Asks for one notification. True if none was asked for before.
    pub(super) fn arm(&self, solicited_only: bool) -> bool {
        let mut ring = lock(&self.ring);
        let before = ring.armed;
        ring.armed = match (before, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        before == Armed::No
    }

    /// No notification is wanted any more. True if one was asked for.
    pub(super) fn disarm(&self) -> bool {
        std::mem::take(&mut lock(&self.ring).armed) != Armed::No
    }

    /// Adds one. Where there is no room, the oldest gives way if `gives_way`.
    pub(super) fn add(
        &self,
        new: E,
        solicited: bool,
        gives_way: bool,
        now: impl FnOnce() -> Time,
    ) -> Added {
        let mut ring = lock(&self.ring);
        let full = ring.entries.len() >= ring.capacity;
        if full && gives_way {
            ring.entries.pop_front();
        } else if full {
            let first = !std::mem::replace(&mut ring.overrun, true);
            return Added::Overran { first };
        }
        ring.entries.push_back(new);
        self.note_count(&ring);
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if !wanted {
            return Added::Quiet;
        }
        // With no room left there is nothing that another completion could add.
        let full = ring.entries.len() >= ring.capacity;
        match ring.moderator.judge(full, now) {
            Verdict::Notify => {
                ring.armed = Armed::No;
                Added::Notify
            }
            Verdict::WaitUntil(at) => Added::NotifyAt(at),
            Verdict::Wait => Added::Quiet,
        }
    }

    /// The time that was set for a delayed notification has come. Whether it is to be given: nobody asks for one
    /// any more then.
    pub(super) fn delay_ended(&self, now: Time) -> bool {
        let mut ring = lock(&self.ring);
        let is_due = ring.moderator.is_due(now) && ring.armed != Armed::No;
        if is_due {
            ring.moderator.reset();
            ring.armed = Armed::No;
        }
        is_due
    }

    pub(super) fn moderate(&self, moderation: Moderation) {
        lock(&self.ring).moderator.set(moderation);
    }

    /// Changes how many there may be. `None` if there are more.
    pub(super) fn resize(&self, capacity: usize) -> Option<Result<(), TryReserveError>> {
        let mut ring = lock(&self.ring);
        let more = capacity.checked_sub(ring.entries.len())?;
        Some(ring.entries.try_reserve_exact(more).map(|()| {
            ring.capacity = capacity;
        }))
    }

    /// Takes out those that `goes` names, in their order.
    pub(super) fn purge(&self, goes: impl Fn(&E) -> bool) -> Vec<E> {
        let mut purged = Vec::new();
        let mut ring = lock(&self.ring);
        ring.entries.retain(|entry| {
            let goes = goes(entry);
            if goes {
                purged.push(*entry);
            }
            !goes
        });
        self.note_count(&ring);
        purged
    }
}
