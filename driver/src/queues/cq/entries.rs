//! The entries of a completion queue, and the notification that the application has requested.

use crate::scheduling::moderation::{Moderation, Moderator, Verdict};
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use std::collections::{TryReserveError, VecDeque};
use urxe_proto::time::Time;

/// The notification that the application has requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Armed {
    #[default]
    No,
    /// For a completion of a solicited receive, or an error.
    Solicited,
    /// For any completion.
    Any,
}

/// The completions that were added since the last notification without causing one. There are none
/// once the queue was empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Unannounced {
    #[default]
    None,
    /// None of them is solicited: they satisfy a request for any completion.
    Unsolicited,
    /// At least one is solicited: they satisfy any request.
    Solicited,
}

/// The effect of a request for a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// The queue was not armed before, and is now.
    Armed,
    /// The queue was armed before, and still is.
    Renewed,
    /// A completion that no notification announced is in the queue, so the notification must be
    /// delivered now. The queue is not armed; `was_armed` says whether it was.
    Notify {
        /// Whether the queue was armed before: for a solicited completion, when unsolicited ones
        /// were added, which satisfy this request for any completion.
        was_armed: bool,
    },
}

/// The entries of a completion queue, oldest first.
#[derive(Debug)]
pub(super) struct Entries<E> {
    ring: Mutex<Ring<E>>,
    /// A copy of the number of entries, so that an empty poll takes no lock.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Ring<E> {
    entries: VecDeque<E>,
    capacity: usize,
    armed: Armed,
    unannounced: Unannounced,
    moderator: Moderator,
}

impl<E> Ring<E> {
    /// Records that entries were taken: an empty queue has no completion to announce.
    fn note_taken(&mut self) {
        if self.entries.is_empty() {
            self.unannounced = Unannounced::None;
        }
    }

    /// Consumes the request, for a notification of all entries that the queue has.
    fn announce(&mut self) {
        self.armed = Armed::No;
        self.unannounced = Unannounced::None;
    }
}

/// The result of adding an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// The requested notification must be delivered now; the request is consumed.
    Notify,
    /// The notification is delayed until this time at the latest.
    NotifyAt(Time),
    /// No notification is requested, or it is delayed already.
    Quiet,
    /// The queue was full, and the entry is lost.
    Overran,
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
                unannounced: Unannounced::None,
                moderator: Moderator::default(),
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
        ring.note_taken();
        self.note_count(&ring);
        taken
    }

    /// The count is stored with Release while the ring is locked, and `arm` takes that lock. So a
    /// poll after `arm` sees every entry that was added before it.
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn note_count(&self, ring: &MutexGuard<'_, Ring<E>>) {
        self.count.store(ring.entries.len(), Ordering::Release);
    }

    /// Passes up to `most` of the oldest entries to `each`, with their index. Returns their number.
    #[inline]
    pub(super) fn take_many(&self, most: usize, each: impl FnMut(usize, E)) -> usize {
        match self.is_empty() {
            true => 0,
            false => self.take_queued(most, each),
        }
    }

    #[inline(never)]
    fn take_queued(&self, most: usize, mut each: impl FnMut(usize, E)) -> usize {
        let mut ring = lock(&self.ring);
        let taken = ring.entries.len().min(most);
        // Usually there are few, for which a `Drain` would cost more than its loop.
        for index in 0..taken {
            if let Some(entry) = ring.entries.pop_front() {
                each(index, entry);
            }
        }
        ring.note_taken();
        self.note_count(&ring);
        taken
    }

    /// Requests one notification.
    ///
    /// A completion in the queue that no notification announced satisfies the request at once, as
    /// it does for a NIC: the request carries the consumer index there. A program may therefore
    /// sleep after it polled and then armed, in this order.
    pub(super) fn arm(&self, solicited_only: bool) -> Request {
        let mut ring = lock(&self.ring);
        let before = ring.armed;
        let satisfied = match ring.unannounced {
            Unannounced::None => false,
            Unannounced::Unsolicited => !solicited_only,
            Unannounced::Solicited => true,
        };
        if satisfied {
            ring.announce();
            ring.moderator.reset();
            return Request::Notify {
                was_armed: before != Armed::No,
            };
        }
        ring.armed = match (before, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        match before {
            Armed::No => Request::Armed,
            Armed::Solicited | Armed::Any => Request::Renewed,
        }
    }

    /// Cancels the requested notification. Returns true if one was requested.
    pub(super) fn disarm(&self) -> bool {
        std::mem::take(&mut lock(&self.ring).armed) != Armed::No
    }

    /// Adds an entry. If the queue is full, the entry replaces the oldest one if `overwrites_oldest`
    /// is true, and is lost otherwise.
    pub(super) fn add(
        &self,
        new: E,
        solicited: bool,
        overwrites_oldest: bool,
        now: impl FnOnce() -> Time,
    ) -> Added {
        let mut ring = lock(&self.ring);
        let full = ring.entries.len() >= ring.capacity;
        if full && overwrites_oldest {
            ring.entries.pop_front();
        } else if full {
            return Added::Overran;
        }
        ring.entries.push_back(new);
        self.note_count(&ring);
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if !wanted {
            if solicited {
                ring.unannounced = Unannounced::Solicited;
            } else if ring.unannounced == Unannounced::None {
                ring.unannounced = Unannounced::Unsolicited;
            }
            return Added::Quiet;
        }
        // A full queue notifies at once: further completions cannot be added to the batch.
        let full = ring.entries.len() >= ring.capacity;
        match ring.moderator.decide(full, now) {
            Verdict::Notify => {
                ring.announce();
                Added::Notify
            }
            Verdict::WaitUntil(at) => Added::NotifyAt(at),
            Verdict::Wait => Added::Quiet,
        }
    }

    /// Consumes the request and calls `notify`, if the delayed notification is due at `now`. The
    /// queue is locked meanwhile: after [`Entries::disarm`] no call of `notify` is in progress.
    pub(super) fn delay_ended(&self, now: Time, notify: impl FnOnce()) {
        let mut ring = lock(&self.ring);
        if ring.moderator.is_due(now) && ring.armed != Armed::No {
            ring.moderator.reset();
            ring.announce();
            notify();
        }
    }

    pub(super) fn moderate(&self, moderation: Moderation) {
        lock(&self.ring).moderator.set(moderation);
    }

    /// Changes the largest number of entries. Returns `None` if the queue holds more.
    pub(super) fn resize(&self, capacity: usize) -> Option<Result<(), TryReserveError>> {
        let mut ring = lock(&self.ring);
        let more = capacity.checked_sub(ring.entries.len())?;
        Some(ring.entries.try_reserve_exact(more).map(|()| {
            ring.capacity = capacity;
        }))
    }

    /// Removes and returns the entries that `goes` selects, in their order.
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
        ring.note_taken();
        self.note_count(&ring);
        purged
    }
}
