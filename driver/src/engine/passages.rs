//! Passages: the ways to processes of this host, which reliable connections take in turns.
//!
//! All connections to a process fill one buffer, that of its socket, and there is no wire that would hold anybody back: 256
//! connections with a window of 256 KiB each have 64 MiB under way. What does not fit is lost and goes again; what fits is in no
//! cache any more when it is read. So each connection is granted a stretch at a time, and waits for its next turn while
//! much is under way to that process. Whoever has the place to itself, or shares it with a few, never waits.

use super::Engine;
use crate::event_queue::lock;
use crate::qp::Qp;
use crate::regions::regions;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// How many bytes are granted at a time: some batches, and enough for a READ request.
pub(crate) const GRANT: u32 = 64 << 10;

/// Bytes that may be under way to a process: what a processor's cache holds beside other things.
const MOST: u32 = 512 << 10;

/// The same to one with the smallest buffer: the window of one connection.
const LEAST: u32 = 256 << 10;

/// The way to one process of this host.
#[derive(Debug)]
pub(crate) struct Passage {
    /// The top bits of its queue pairs' numbers.
    slot: u8,
    /// How many bytes may be under way.
    limit: u32,
    under_way: AtomicU32,
    waiting: Mutex<VecDeque<Arc<Qp>>>,
    /// How many wait, to be read without a lock.
    count: AtomicUsize,
    /// How many wait for any passage.
    total: Arc<AtomicUsize>,
}

impl Passage {
    fn new(slot: u8, receive_buffer: u32, total: &Arc<AtomicUsize>) -> Self {
        Passage {
            slot,
            // The kernel counts memory, of which data that comes in batches takes most (`docs/DECISIONS.md`).
            limit: (receive_buffer / 4 * 3).clamp(LEAST, MOST),
            under_way: AtomicU32::new(0),
            waiting: Mutex::default(),
            count: AtomicUsize::new(0),
            total: Arc::clone(total),
        }
    }

    /// A connection that had `before` bytes under way has `now`.
    pub(crate) fn changed(&self, before: u32, now: u32) {
        // In one order with the count of those that wait: who begins to wait looks here afterwards, and who
        // makes room looks there.
        if now > before {
            self.under_way.fetch_add(now - before, Ordering::SeqCst);
        } else if now < before {
            self.under_way.fetch_sub(before - now, Ordering::SeqCst);
        }
    }

    /// Whether a connection may have a grant without waiting.
    pub(crate) fn is_free(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0 && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) < self.limit
    }

    /// Whether somebody waits who need not.
    fn calls(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.has_room()
    }

    fn add(&self, qp: Arc<Qp>) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back(qp);
        self.count.store(waiting.len(), Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::SeqCst);
    }

    fn next(&self) -> Option<Arc<Qp>> {
        let mut waiting = lock(&self.waiting);
        let next = waiting.pop_front()?;
        self.count.store(waiting.len(), Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::SeqCst);
        Some(next)
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        // Queue pairs that ended, and the last others that took this way, too.
        let left = lock(&self.waiting).len();
        self.total.fetch_sub(left, Ordering::SeqCst);
    }
}

/// All passages that connections take.
#[derive(Debug, Default)]
pub(super) struct Passages {
    all: Mutex<Vec<Weak<Passage>>>,
    /// How many connections wait for any of them.
    waiting: Arc<AtomicUsize>,
}

impl Passages {
    /// One where somebody waits who need not.
    fn calling(&self) -> Option<Arc<Passage>> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let all = lock(&self.all);
        let mut all = all.iter().filter_map(Weak::upgrade);
        all.find(|passage| passage.calls())
    }
}

impl Engine {
    /// The passage to the process in `slot`, whose buffer is as large as our own.
    pub(crate) fn passage(&self, slot: u8, receive_buffer: u32) -> Arc<Passage> {
        let mut all = lock(&self.passages.all);
        all.retain(|passage| passage.strong_count() > 0);
        let known = all
            .iter()
            .filter_map(Weak::upgrade)
            .find(|passage| passage.slot == slot);
        known.unwrap_or_else(|| {
            let total = &self.passages.waiting;
            let passage = Arc::new(Passage::new(slot, receive_buffer, total));
            all.push(Arc::downgrade(&passage));
            passage
        })
    }

    /// A connection waits for a grant, behind those that wait already. Whoever lets queue pairs send without doing the work of
    /// the network calls [`Engine::passage_cleared`] afterwards.
    pub(crate) fn wait_for_passage(&self, passage: &Passage, qp: Arc<Qp>) {
        passage.add(qp);
        self.counters.turns_awaited.add(1);
    }

    /// Somebody may wait on a passage that has room, and this thread is not about to do the work of the network.
    pub(crate) fn passage_cleared(&self) {
        if self.passage_calls() {
            self.wake();
        }
    }

    /// How many connections wait for their turn to send to a process of this host.
    pub fn connections_awaiting_turns(&self) -> usize {
        self.passages.waiting.load(Ordering::Relaxed)
    }

    /// Whether somebody waits who need not.
    pub(super) fn passage_calls(&self) -> bool {
        self.passages.calling().is_some()
    }

    /// Lets those go on who wait and need not any more. No lock may be held.
    pub(super) fn grant_passage(&self) -> bool {
        let mut granted = false;
        while let Some(passage) = self.passages.calling() {
            while passage.calls()
                && let Some(qp) = passage.next()
            {
                qp.take_passage(regions().table());
                granted = true;
            }
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_as_much_is_under_way_as_the_receiver_holds() {
        let passage = Passage::new(3, 8 << 20, &Arc::default());
        passage.changed(0, MOST - 1);
        assert!(passage.is_free());
        passage.changed(0, 1);
        assert!(!passage.is_free());
        passage.changed(MOST - 1, 0);
        assert!(passage.is_free());
    }

    #[test]
    fn a_small_buffer_takes_the_window_of_one_connection() {
        // What `net.core.rmem_max` allows by default, doubled by the kernel.
        let total = Arc::default();
        let passage = Passage::new(3, 2 * 212_992, &total);
        assert!((LEAST..2 * LEAST).contains(&passage.limit));
        assert_eq!(Passage::new(3, 0, &total).limit, LEAST);
    }
}
