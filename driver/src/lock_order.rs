//! The order in which a thread takes the driver's nested locks, which debug builds check.
//!
//! ARCHITECTURE.md, section Locks, has the whole order. Here are the steps of it at which locks are
//! held while others are taken. A thread takes a lock only if all that it holds have a lower rank.

use std::ops::{Deref, DerefMut};

/// The steps of the order, first to last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    /// The multicast groups of a queue pair.
    QpGroups,
    /// The opening of an address.
    Opening,
    /// The receiver of forwarded datagrams.
    Forwarded,
    /// The list of joined groups.
    Groups,
    /// The receiver of a socket.
    Receiver,
    /// The counters of destroyed queue pairs of a device.
    PastCounters,
    /// The table of queue pairs.
    QueuePairs,
    /// The table of memory regions.
    Regions,
    /// A queue pair.
    QueuePair,
}

/// A lock guard `G` with its place in the order.
#[derive(Debug)]
pub(crate) struct Ordered<G> {
    // Dropped first: the lock is released before its rank.
    guard: G,
    _held: Held,
}

impl<G> Ordered<G> {
    /// Takes a lock with `lock`.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of the same or a later rank.
    pub(crate) fn take(rank: Rank, lock: impl FnOnce() -> G) -> Self {
        let held = Held::new(rank);
        Ordered {
            guard: lock(),
            _held: held,
        }
    }

    /// Takes a lock with `lock`, which returns `None` if another thread holds it.
    ///
    /// # Panics
    /// See [`Ordered::take`].
    pub(crate) fn try_take(rank: Rank, lock: impl FnOnce() -> Option<G>) -> Option<Self> {
        let held = Held::new(rank);
        Some(Ordered {
            guard: lock()?,
            _held: held,
        })
    }
}

impl<G: Deref> Deref for Ordered<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ordered<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
use checked::Held;
#[cfg(not(debug_assertions))]
use unchecked::Held;

#[cfg(not(debug_assertions))]
mod unchecked {
    use super::Rank;

    /// A lock that the thread holds; nothing is recorded.
    #[derive(Debug)]
    pub(super) struct Held;

    impl Held {
        pub(super) fn new(_: Rank) -> Self {
            Held
        }
    }
}

#[cfg(debug_assertions)]
mod checked {
    use super::Rank;
    use std::cell::RefCell;

    thread_local! {
        /// The ranks of the locks that this thread holds.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// A lock that the thread holds, recorded as long as this exists.
    #[derive(Debug)]
    pub(super) struct Held(Rank);

    impl Held {
        pub(super) fn new(rank: Rank) -> Self {
            let last = HELD.with_borrow(|held| held.iter().max().copied());
            assert!(
                last.is_none_or(|last| last < rank) || std::thread::panicking(),
                "lock order: {rank:?} is taken after {last:?}"
            );
            HELD.with_borrow_mut(|held| held.push(rank));
            Held(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // Guards may be dropped in any order, and while the thread ends.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.remove(at);
                }
            });
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::{Ordered, Rank};
        use std::sync::Mutex;

        fn take<T>(rank: Rank, mutex: &Mutex<T>) -> Ordered<std::sync::MutexGuard<'_, T>> {
            Ordered::take(rank, || mutex.lock().unwrap())
        }

        #[test]
        fn locks_are_taken_in_order_and_released_in_any() {
            let (table, qp) = (Mutex::new(()), Mutex::new(()));
            let first = take(Rank::QueuePairs, &table);
            let second = take(Rank::QueuePair, &qp);
            drop(first);
            drop(second);
            drop(take(Rank::QueuePairs, &table));
        }

        #[test]
        #[should_panic(expected = "lock order: Regions is taken after Some(QueuePair)")]
        fn a_table_is_not_locked_after_a_queue_pair() {
            let (table, qp) = (Mutex::new(()), Mutex::new(()));
            let _qp = take(Rank::QueuePair, &qp);
            let _table = take(Rank::Regions, &table);
        }

        #[test]
        #[should_panic(expected = "lock order: QueuePair is taken after Some(QueuePair)")]
        fn two_queue_pairs_are_not_locked_together() {
            let (one, other) = (Mutex::new(()), Mutex::new(()));
            let _one = take(Rank::QueuePair, &one);
            let _other = take(Rank::QueuePair, &other);
        }
    }
}
