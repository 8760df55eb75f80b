//! The receive queue of one queue pair: a ring of receives.
//!
//! Threads that post take a lock, so that they post one after the other. The thread that takes
//! receives for packets holds the lock of the queue pair, so there is one such thread at a time. It
//! needs no lock of the ring: a receive that is posted belongs to it, a free slot to the posters.

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use urxe_proto::host::Receive;
use urxe_proto::ids::LKey;
use urxe_proto::queue::{NoMemory, PostError};
use urxe_proto::work::Sge;

/// The words of a slot before its scatter/gather elements: the number of the work request, and the
/// number of elements.
const SLOT_WORDS: usize = 2;

/// The words of a scatter/gather element: the address, and length and key.
const SGE_WORDS: usize = 2;

/// A ring of receives.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    capacity: usize,
    max_sge: usize,
    /// The slots. A slot is written before `posted` includes it, and read before `taken` does.
    words: Box<[AtomicU64]>,
    /// The slot of the next receive that is posted.
    next_free: Mutex<usize>,
    /// The receives that were ever posted. Changes only while `next_free` is locked.
    posted: AtomicUsize,
    /// The receives that were ever taken, and the slot of the next one. Both change only while the
    /// queue pair is locked.
    taken: AtomicUsize,
    next_posted: AtomicUsize,
}

impl ReceiveRing {
    /// Returns an empty ring for up to `max_wr` receives of up to `max_sge` elements each.
    ///
    /// # Errors
    /// [`NoMemory`] if the memory cannot be allocated.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Result<Self, NoMemory> {
        let (capacity, max_sge) = (max_wr as usize, max_sge as usize);
        let count = capacity * (SLOT_WORDS + max_sge * SGE_WORDS);
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| NoMemory)?;
        words.resize_with(count, || AtomicU64::new(0));
        Ok(ReceiveRing {
            capacity,
            max_sge,
            words: words.into(),
            next_free: Mutex::new(0),
            posted: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            next_posted: AtomicUsize::new(0),
        })
    }

    /// Returns the number of posted receives.
    pub(crate) fn len(&self) -> u32 {
        // In this order the result is not negative: when `taken` has a value, `posted` has reached
        // it.
        let taken = self.taken.load(Ordering::Acquire);
        self.posted.load(Ordering::Acquire).wrapping_sub(taken) as u32
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError::TooManySges`] or [`PostError::Full`].
    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.max_sge {
            return Err(PostError::TooManySges);
        }
        let mut slot = lock(&self.next_free);
        let posted = self.posted.load(Ordering::Relaxed);
        // Acquire: the slot is written only after its previous receive was read.
        if posted.wrapping_sub(self.taken.load(Ordering::Acquire)) == self.capacity {
            return Err(PostError::Full);
        }
        let (head, elements) = self.slot(*slot).split_at(SLOT_WORDS);
        head[0].store(wr_id, Ordering::Relaxed);
        head[1].store(sges.len() as u64, Ordering::Relaxed);
        for (words, sge) in elements.chunks_exact(SGE_WORDS).zip(sges) {
            let rest = u64::from(sge.length) << u32::BITS | u64::from(sge.lkey.0);
            words[0].store(sge.addr, Ordering::Relaxed);
            words[1].store(rest, Ordering::Relaxed);
        }
        *slot = self.after(*slot);
        // Release: a thread that sees the receive also sees its words.
        self.posted.store(posted.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Takes the oldest receive into `into`; returns false when there is none. The caller must hold
    /// the lock of the queue pair: of two concurrent calls, both may take the same receive.
    pub(crate) fn take(&self, into: &mut Receive) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        if self.posted.load(Ordering::Acquire) == taken {
            return false;
        }
        let slot = self.next_posted.load(Ordering::Relaxed);
        let (head, elements) = self.slot(slot).split_at(SLOT_WORDS);
        into.wr_id = head[0].load(Ordering::Relaxed);
        let count = head[1].load(Ordering::Relaxed) as usize;
        into.sges.clear();
        for words in elements.chunks_exact(SGE_WORDS).take(count) {
            let rest = words[1].load(Ordering::Relaxed);
            into.sges.push(Sge {
                addr: words[0].load(Ordering::Relaxed),
                length: (rest >> u32::BITS) as u32,
                lkey: LKey(rest as u32),
            });
        }
        self.next_posted.store(self.after(slot), Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        true
    }

    /// Waits until the threads that are posting have posted. The receive of a thread that posts
    /// later is posted after everything that the caller has done.
    pub(crate) fn wait_for_posters(&self) {
        drop(lock(&self.next_free));
    }

    /// Returns the words of a slot.
    fn slot(&self, index: usize) -> &[AtomicU64] {
        let len = SLOT_WORDS + self.max_sge * SGE_WORDS;
        &self.words[index * len..][..len]
    }

    /// Returns the slot after `slot`.
    fn after(&self, slot: usize) -> usize {
        match slot + 1 {
            next if next == self.capacity => 0,
            next => next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(number: u32) -> Sge {
        Sge {
            addr: u64::from(number) << 40,
            length: !number,
            lkey: LKey(number),
        }
    }

    fn next(ring: &ReceiveRing) -> Option<(u64, Vec<Sge>)> {
        let mut receive = Receive::default();
        ring.take(&mut receive)
            .then_some((receive.wr_id, receive.sges))
    }

    #[test]
    fn receives_are_taken_in_order_with_their_elements() {
        let ring = ReceiveRing::new(3, 2).unwrap();
        let elements = |id: u64| [sge(id as u32), sge(id as u32 + 100)];
        let count = |id: u64| id as usize % 3;
        for id in 0..10 {
            ring.post(id, &elements(id)[..count(id)]).unwrap();
            if id >= 2 {
                let oldest = id - 2;
                let expected = elements(oldest)[..count(oldest)].to_vec();
                assert_eq!(ring.len(), 3);
                assert_eq!(next(&ring), Some((oldest, expected)));
            }
        }
        assert_eq!(ring.len(), 2);
    }

    #[test]
    fn full_ring_and_long_lists_are_refused() {
        let ring = ReceiveRing::new(2, 1).unwrap();
        ring.post(1, &[sge(1)]).unwrap();
        let too_many = ring.post(2, &[sge(1), sge(2)]);
        assert_eq!(too_many, Err(PostError::TooManySges));
        ring.post(2, &[]).unwrap();
        assert_eq!(ring.post(3, &[]), Err(PostError::Full));
        assert_eq!(next(&ring), Some((1, vec![sge(1)])));
        ring.post(3, &[]).unwrap();
        assert_eq!(ring.post(4, &[]), Err(PostError::Full));
    }

    #[test]
    fn ring_of_capacity_0_is_full_and_empty() {
        let ring = ReceiveRing::new(0, 0).unwrap();
        assert_eq!(ring.post(1, &[]), Err(PostError::Full));
        assert_eq!(next(&ring), None);
        assert_eq!(ring.len(), 0);
    }

    #[test]
    fn failed_allocation_is_reported() {
        assert_eq!(
            ReceiveRing::new(u32::MAX, u32::MAX >> 8).err(),
            Some(NoMemory)
        );
    }

    /// A packet takes five locks in all; a poster may hold this one meanwhile.
    #[test]
    fn taking_needs_no_lock() {
        let ring = ReceiveRing::new(1, 1).unwrap();
        ring.post(7, &[sge(7)]).unwrap();
        let _posting = lock(&ring.next_free);
        assert_eq!(next(&ring), Some((7, vec![sge(7)])));
    }
}
