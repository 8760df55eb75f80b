//! Limits of the bytes in flight to each process of this host, for reliable connections.
//!
//! All connections to a process share the receive buffer of its socket, and no wire limits the rate
//! of a sender: 256 connections with a window of 256 KiB each have 64 MiB in flight. Packets that
//! do not fit are lost and retransmitted. Packets that fit are evicted from every cache before they
//! are read. So each connection sends one quantum at a time, and joins a FIFO while the bytes in
//! flight to that process reach the limit. A connection that is alone, or one of a few, never
//! waits.

use super::limits::{MAX_IN_FLIGHT, MIN_IN_FLIGHT};
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use urxe_net::Counter;

/// The in-flight limit of one process of this host, and the FIFO of waiting connections `T`.
#[derive(Debug)]
pub(crate) struct DestinationLimiter<T> {
    /// The slot of the process: the top bits of its queue pair numbers.
    slot: u8,
    /// The limit of bytes in flight.
    limit: u32,
    in_flight: AtomicU32,
    waiting: Mutex<VecDeque<Arc<T>>>,
    /// The length of `waiting`, to be read without a lock.
    count: AtomicUsize,
    totals: Arc<Totals>,
}

/// The sums over all destinations.
#[derive(Debug, Default)]
struct Totals {
    /// The number of connections that wait.
    waiting: AtomicUsize,
    /// How often a connection has waited.
    waits: Counter,
}

impl<T> DestinationLimiter<T> {
    fn new(slot: u8, receive_buffer: u32, totals: &Arc<Totals>) -> Self {
        DestinationLimiter {
            slot,
            // The kernel limits memory, most of which is data where packets arrive in batches
            // (`docs/DECISIONS.md`).
            limit: (receive_buffer / 4 * 3).clamp(MIN_IN_FLIGHT, MAX_IN_FLIGHT),
            in_flight: AtomicU32::new(0),
            waiting: Mutex::new(VecDeque::new()),
            count: AtomicUsize::new(0),
            totals: Arc::clone(totals),
        }
    }

    /// Records that a connection with `before` bytes in flight now has `now`.
    pub(crate) fn changed(&self, before: u32, now: u32) {
        // `in_flight` and `Totals::waiting` are accessed with SeqCst. A connection that begins to
        // wait increments `waiting`, then loads `in_flight`; a thread that reduces `in_flight` then
        // loads `waiting`. At least one of them sees the other's change, so no waiting connection
        // is missed.
        if now > before {
            self.in_flight.fetch_add(now - before, Ordering::SeqCst);
        } else if now < before {
            self.in_flight.fetch_sub(before - now, Ordering::SeqCst);
        }
    }

    /// Returns whether a connection may send a quantum without waiting.
    pub(crate) fn is_free(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0 && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) < self.limit
    }

    /// Returns whether a connection waits although the limit permits another quantum.
    fn can_grant(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.has_room()
    }

    /// Adds a connection to the FIFO. A caller that does not drive the network afterwards must
    /// check [`DestinationLimiters::can_grant`].
    pub(crate) fn wait(&self, connection: Arc<T>) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back(connection);
        self.count.store(waiting.len(), Ordering::Relaxed);
        self.totals.waiting.fetch_add(1, Ordering::SeqCst);
        self.totals.waits.add(1);
    }

    fn next(&self) -> Option<Arc<T>> {
        let mut waiting = lock(&self.waiting);
        let next = waiting.pop_front()?;
        self.count.store(waiting.len(), Ordering::Relaxed);
        self.totals.waiting.fetch_sub(1, Ordering::SeqCst);
        Some(next)
    }
}

impl<T> Drop for DestinationLimiter<T> {
    fn drop(&mut self) {
        // Queue pairs that were destroyed while they waited may be left in the FIFO.
        let left = lock(&self.waiting).len();
        self.totals.waiting.fetch_sub(left, Ordering::SeqCst);
    }
}

/// The limiters of all destinations that connections use.
#[derive(Debug)]
pub(crate) struct DestinationLimiters<T> {
    all: Mutex<Vec<Weak<DestinationLimiter<T>>>>,
    totals: Arc<Totals>,
}

impl<T> Default for DestinationLimiters<T> {
    fn default() -> Self {
        DestinationLimiters {
            all: Mutex::default(),
            totals: Arc::default(),
        }
    }
}

impl<T> DestinationLimiters<T> {
    /// Returns the limiter of the process in `slot`, whose receive buffer is assumed to be as large
    /// as this process's.
    pub(crate) fn of_slot(&self, slot: u8, receive_buffer: u32) -> Arc<DestinationLimiter<T>> {
        let mut all = lock(&self.all);
        all.retain(|limiter| limiter.strong_count() > 0);
        let known = all
            .iter()
            .filter_map(Weak::upgrade)
            .find(|limiter| limiter.slot == slot);
        known.unwrap_or_else(|| {
            let limiter = Arc::new(DestinationLimiter::new(slot, receive_buffer, &self.totals));
            all.push(Arc::downgrade(&limiter));
            limiter
        })
    }

    /// Returns the number of connections in all FIFOs.
    pub(crate) fn waiting(&self) -> usize {
        self.totals.waiting.load(Ordering::Relaxed)
    }

    /// Returns how often a connection has waited.
    pub(crate) fn waits(&self) -> u64 {
        self.totals.waits.get()
    }

    /// Returns whether a connection waits although the limit of its destination permits another
    /// quantum.
    #[inline]
    pub(crate) fn can_grant(&self) -> bool {
        self.grantable().is_some()
    }

    /// Removes waiting connections from their FIFOs while the limits permit, and passes each to
    /// `send` with no lock held. Returns whether there were any.
    pub(crate) fn grant(&self, mut send: impl FnMut(Arc<T>)) -> bool {
        let mut granted = false;
        while let Some(limiter) = self.grantable() {
            while limiter.can_grant()
                && let Some(connection) = limiter.next()
            {
                send(connection);
                granted = true;
            }
        }
        granted
    }

    #[inline]
    fn grantable(&self) -> Option<Arc<DestinationLimiter<T>>> {
        match self.totals.waiting.load(Ordering::SeqCst) {
            0 => None,
            _ => self.find_grantable(),
        }
    }

    #[cold]
    fn find_grantable(&self) -> Option<Arc<DestinationLimiter<T>>> {
        let all = lock(&self.all);
        let mut all = all.iter().filter_map(Weak::upgrade);
        all.find(|limiter| limiter.can_grant())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_flight_reach_the_limit() {
        let limiter = DestinationLimiter::<()>::new(3, 8 << 20, &Arc::default());
        limiter.changed(0, MAX_IN_FLIGHT - 1);
        assert!(limiter.is_free());
        limiter.changed(0, 1);
        assert!(!limiter.is_free());
        limiter.changed(MAX_IN_FLIGHT - 1, 0);
        assert!(limiter.is_free());
    }

    #[test]
    fn a_small_receive_buffer_permits_the_window_of_one_connection() {
        // The default of `net.core.rmem_max`, doubled by the kernel.
        let totals = Arc::default();
        let limiter = DestinationLimiter::<()>::new(3, 2 * 212_992, &totals);
        assert!((MIN_IN_FLIGHT..2 * MIN_IN_FLIGHT).contains(&limiter.limit));
        let least = DestinationLimiter::<()>::new(3, 0, &totals);
        assert_eq!(least.limit, MIN_IN_FLIGHT);
    }
}
