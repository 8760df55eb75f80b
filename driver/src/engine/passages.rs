//! Per-destination in-flight limits for reliable connections to processes of this host.
//!
//! All connections to a process share the receive buffer of its socket, and no wire slows a sender
//! down: 256 connections with a window of 256 KiB each have 64 MiB in flight. Packets that do not
//! fit are lost and retransmitted; those that fit are in no cache any more when they are read. So
//! each connection sends one quantum at a time, and joins a FIFO while the bytes in flight to that
//! process reach the limit. A connection that has the destination to itself, or shares it with a
//! few, never waits.

use super::Engine;
use crate::event_queue::lock;
use crate::qp::Qp;
use crate::regions::regions;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The quantum in bytes: several batches, and enough for a READ request.
pub(crate) const GRANT: u32 = 64 << 10;

/// The limit of bytes in flight to a process: a part of a processor's cache.
const MOST: u32 = 512 << 10;

/// The limit for a process with the smallest receive buffer: the window of one connection.
const LEAST: u32 = 256 << 10;

/// The in-flight limit of one process of this host, and the FIFO of waiting connections.
#[derive(Debug)]
pub(crate) struct Passage {
    /// The slot of the process: the top bits of its queue pair numbers.
    slot: u8,
    /// The limit of bytes in flight.
    limit: u32,
    under_way: AtomicU32,
    waiting: Mutex<VecDeque<Arc<Qp>>>,
    /// The length of `waiting`, to be read without a lock.
    count: AtomicUsize,
    /// The number of connections that wait for any destination.
    total: Arc<AtomicUsize>,
}

impl Passage {
    fn new(slot: u8, receive_buffer: u32, total: &Arc<AtomicUsize>) -> Self {
        Passage {
            slot,
            // The kernel limits memory, most of which is data where packets arrive in batches
            // (`docs/DECISIONS.md`).
            limit: (receive_buffer / 4 * 3).clamp(LEAST, MOST),
            under_way: AtomicU32::new(0),
            waiting: Mutex::default(),
            count: AtomicUsize::new(0),
            total: Arc::clone(total),
        }
    }

    /// Records that a connection with `before` bytes in flight now has `now`.
    pub(crate) fn changed(&self, before: u32, now: u32) {
        // In one total order (SeqCst) with the count of waiting connections: a connection that
        // begins to wait loads this count afterwards, and one that makes room loads that one.
        if now > before {
            self.under_way.fetch_add(now - before, Ordering::SeqCst);
        } else if now < before {
            self.under_way.fetch_sub(before - now, Ordering::SeqCst);
        }
    }

    /// Returns whether a connection may send a quantum without waiting.
    pub(crate) fn is_free(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0 && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) < self.limit
    }

    /// Returns whether a connection waits although there is room.
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
        // Queue pairs that were destroyed while they waited may be left in the FIFO.
        let left = lock(&self.waiting).len();
        self.total.fetch_sub(left, Ordering::SeqCst);
    }
}

/// The limits of all destinations that connections use.
#[derive(Debug, Default)]
pub(super) struct Passages {
    all: Mutex<Vec<Weak<Passage>>>,
    /// The number of connections that wait for any of them.
    waiting: Arc<AtomicUsize>,
}

impl Passages {
    /// Returns a destination where a connection waits although there is room.
    #[inline]
    fn calling(&self) -> Option<Arc<Passage>> {
        match self.waiting.load(Ordering::SeqCst) {
            0 => None,
            _ => self.find_calling(),
        }
    }

    #[cold]
    fn find_calling(&self) -> Option<Arc<Passage>> {
        let all = lock(&self.all);
        let mut all = all.iter().filter_map(Weak::upgrade);
        all.find(|passage| passage.calls())
    }
}

impl Engine {
    /// Returns the limit of the process in `slot`, whose receive buffer is as large as this
    /// process's.
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

    /// Adds a connection to the FIFO. A caller that lets queue pairs send without driving the
    /// network calls [`Engine::passage_cleared`] afterwards.
    pub(crate) fn wait_for_passage(&self, passage: &Passage, qp: Arc<Qp>) {
        passage.add(qp);
        self.counters.turns_awaited.add(1);
    }

    /// Wakes the progress thread if a connection waits although there is room. For threads that are
    /// not about to drive the network.
    #[inline]
    pub(crate) fn passage_cleared(&self) {
        if self.passage_calls() {
            self.wake();
        }
    }

    /// Returns the number of connections that wait for room to send to a process of this host.
    pub fn connections_awaiting_turns(&self) -> usize {
        self.passages.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether a connection waits although there is room.
    pub(super) fn passage_calls(&self) -> bool {
        self.passages.calling().is_some()
    }

    /// Lets waiting connections send while there is room. True when there were any. The caller must
    /// hold no lock.
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
        // The default of `net.core.rmem_max`, doubled by the kernel.
        let total = Arc::default();
        let passage = Passage::new(3, 2 * 212_992, &total);
        assert!((LEAST..2 * LEAST).contains(&passage.limit));
        assert_eq!(Passage::new(3, 0, &total).limit, LEAST);
    }
}
