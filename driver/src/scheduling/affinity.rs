//! Receive-side scaling within a process.
//!
//! Threads that poll completion queues of their own should share neither a receive socket nor a
//! cache line. Which threads poll which queues is not known when queue pairs are created. So the
//! first queue pair of a completion queue gives it an *affinity*, in turn, and all queue pairs of
//! the queue have the affinity in the low bits of their numbers. Once threads with different
//! affinities contend for a receive socket, the process opens more, and the steering program
//! selects one by these bits. A process whose polls do not contend has one receive socket.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use urxe_net::{MAX_RECEIVE_SOCKETS, receive_socket_of};
use urxe_proto::ids::Qpn;

/// The number of affinities. With fewer receive sockets, several affinities share one.
pub(crate) const AFFINITIES: usize = MAX_RECEIVE_SOCKETS;

/// The affinity of a completion queue and of its queue pairs: less than [`AFFINITIES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Affinity(u8);

impl Affinity {
    /// Returns the affinity of the queue pair with this number.
    #[inline]
    pub(crate) fn of(qpn: Qpn) -> Self {
        Affinity(receive_socket_of(qpn, AFFINITIES) as u8)
    }

    /// Returns it as a number below [`AFFINITIES`].
    #[inline]
    pub(crate) fn number(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the receive socket of this affinity, where there are `sockets`, a power of two.
    #[inline]
    pub(crate) fn socket(self, sockets: usize) -> usize {
        usize::from(self.0) & (sockets - 1)
    }
}

/// The affinity of a completion queue; the first queue pair sets it.
#[derive(Debug)]
pub(crate) struct CqAffinity(AtomicU8);

/// The value of [`CqAffinity`] before the first queue pair.
const UNSET: u8 = u8::MAX;

impl Default for CqAffinity {
    fn default() -> Self {
        CqAffinity(AtomicU8::new(UNSET))
    }
}

impl CqAffinity {
    /// Returns the affinity; an arbitrary one before the first queue pair, when no packet brings a
    /// completion.
    #[inline]
    pub(crate) fn get(&self) -> Affinity {
        Affinity(self.0.load(Ordering::Relaxed) % AFFINITIES as u8)
    }

    /// Returns the affinity, unless there has been no queue pair.
    pub(crate) fn known(&self) -> Option<Affinity> {
        let number = self.0.load(Ordering::Relaxed);
        (number != UNSET).then_some(Affinity(number))
    }

    /// Sets the affinity, unless it is set.
    pub(crate) fn set(&self, affinity: Affinity) {
        let _ = (self.0).compare_exchange(UNSET, affinity.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The affinities in turn, from a random one on. Of the 16 bits of a queue pair's number that the
/// process chooses, 12 stay unpredictable to a peer that knows another number of the same process.
#[derive(Debug)]
pub(crate) struct Affinities {
    next: AtomicU32,
    /// A bit for each affinity that a queue pair has had.
    used: AtomicU32,
}

impl Default for Affinities {
    fn default() -> Self {
        Affinities {
            next: AtomicU32::new(urxe_net::random::below(AFFINITIES) as u32),
            used: AtomicU32::new(0),
        }
    }
}

impl Affinities {
    /// Returns the next affinity.
    pub(crate) fn next(&self) -> Affinity {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        Affinity((next % AFFINITIES as u32) as u8)
    }

    /// Records that a queue pair has this affinity.
    pub(crate) fn add(&self, affinity: Affinity) {
        (self.used).fetch_or(1 << affinity.number(), Ordering::Relaxed);
    }

    /// Returns whether a queue pair may receive at the receive socket `number`, where there are
    /// `sockets`, a power of two.
    pub(crate) fn use_socket(&self, number: usize, sockets: usize) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        let of_socket = |affinity: &usize| affinity & (sockets - 1) == number;
        let mut affinities = (0..AFFINITIES).filter(of_socket);
        affinities.any(|affinity| used & 1 << affinity != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_queue_pair_sets_the_affinity_of_a_completion_queue() {
        let affinities = Affinities::default();
        let (cq, first, second) = (CqAffinity::default(), affinities.next(), affinities.next());
        assert_eq!(cq.known(), None);
        cq.set(first);
        cq.set(second);
        assert_eq!(cq.known(), Some(first));
        assert_ne!(first, second);
    }

    #[test]
    fn affinities_of_successive_completion_queues_have_different_sockets() {
        let affinities = Affinities::default();
        for sockets in [1, 2, 4, AFFINITIES] {
            let mut taken = vec![0; sockets];
            (0..AFFINITIES).for_each(|_| taken[affinities.next().socket(sockets)] += 1);
            assert!(taken.iter().all(|count| *count == AFFINITIES / sockets));
        }
    }

    #[test]
    fn sockets_are_used_if_a_queue_pair_has_one_of_their_affinities() {
        let affinities = Affinities::default();
        assert!(!(0..4).any(|number| affinities.use_socket(number, 4)));
        affinities.add(Affinity(0xb));
        for (sockets, number) in [(2, 1), (4, 3), (16, 0xb)] {
            let used = (0..sockets).filter(|number| affinities.use_socket(*number, sockets));
            assert!(used.eq([number]), "{sockets}");
        }
    }

    #[test]
    fn numbers_of_queue_pairs_contain_the_affinity() {
        assert_eq!(Affinity::of(Qpn::new(0x12_345b)).number(), 0xb);
        assert_eq!(Affinity::of(Qpn::new(0x12_345b)).socket(4), 3);
    }
}
