//! The outstanding work requests of one queue, in the order in which they were posted.
#![forbid(unsafe_code)]

use crate::slices::Memory;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

/// The queue of a queue pair that a work request was posted to.
///
/// ```
/// # use urxe::prelude::*;
/// let (a, b) = urxe::testing::pair()?;
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// a.post_send(SendRequest::send(b"hello"))?;
/// assert_eq!(a.cq().wait()?.queue, WorkQueue::Send);
/// assert_eq!(b.cq().wait()?.queue, WorkQueue::Receive);
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkQueue {
    /// The send queue: SEND, RDMA, atomics and bind operations.
    Send,
    /// The receive queue.
    Receive,
}

/// The driver's identifier of a work request. The lowest bit is the queue.
///
/// An identifier is never reused in a process, so a late completion of a destroyed queue pair
/// cannot be attributed to another work request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct WorkId(u64);

impl WorkId {
    /// The bit of the receive queue.
    const RECEIVE: u64 = 1;
    /// The identifier of no work request.
    const NONE: WorkId = WorkId(u64::MAX);

    pub(crate) fn from_driver(wr_id: u64) -> WorkId {
        WorkId(wr_id)
    }

    pub(crate) fn to_driver(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn queue(self) -> WorkQueue {
        match self.0 & Self::RECEIVE {
            0 => WorkQueue::Send,
            _ => WorkQueue::Receive,
        }
    }
}

/// The identifiers that one queue gives its work requests, in ascending order.
///
/// They come from a block that only this queue has, so that queues share no counter.
#[derive(Debug)]
pub(crate) struct WorkIds {
    next: u64,
    end: u64,
    queue: WorkQueue,
}

impl WorkIds {
    /// The identifiers in a block. A process can take 2^43 blocks.
    const BLOCK: u64 = 1 << 20;
    /// The distance of two identifiers of a queue.
    const STEP: u64 = WorkId::RECEIVE << 1;

    pub(crate) fn new(queue: WorkQueue) -> WorkIds {
        WorkIds {
            next: 0,
            end: 0,
            queue,
        }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> WorkId {
        if self.next == self.end {
            self.reserve();
        }
        let id = WorkId(self.next);
        self.next += Self::STEP;
        id
    }

    #[cold]
    #[inline(never)]
    fn reserve(&mut self) {
        static BLOCKS: AtomicU64 = AtomicU64::new(0);
        let block = BLOCKS.fetch_add(1, Ordering::Relaxed);
        let first = block * Self::BLOCK * Self::STEP;
        self.next = match self.queue {
            WorkQueue::Send => first,
            WorkQueue::Receive => first | WorkId::RECEIVE,
        };
        self.end = self.next + Self::BLOCK * Self::STEP;
    }
}

/// An outstanding work request.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The driver's identifier.
    pub(crate) id: WorkId,
    /// The application's identifier for it.
    pub(crate) wr_id: u64,
    /// The memory that it works on.
    pub(crate) memory: Memory,
    /// How it completes.
    pub(crate) kind: Kind,
}

impl Entry {
    fn vacant() -> Entry {
        Entry {
            id: WorkId::NONE,
            wr_id: 0,
            memory: Memory::default(),
            kind: Kind::Signaled,
        }
    }

    fn is_vacant(&self) -> bool {
        self.id == WorkId::NONE
    }

    /// Takes the work request out of its slot in a ring, which is vacant then.
    #[inline]
    fn take(&mut self) -> Entry {
        Entry {
            id: mem::replace(&mut self.id, WorkId::NONE),
            wr_id: self.wr_id,
            memory: mem::take(&mut self.memory),
            kind: self.kind,
        }
    }
}

/// How a work request completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// With a completion for the application.
    Signaled,
    /// Without a completion on success.
    Unsignaled,
    /// With a completion for the future that posted it.
    Awaited,
}

/// The work requests that a completion ends. Dropping it may deregister memory, so it must not be
/// dropped while a lock is held.
#[derive(Debug)]
pub(crate) struct Completed {
    /// The work request of the completion.
    pub(crate) entry: Entry,
    /// The unsignaled work requests before it.
    pub(crate) silent: Vec<Entry>,
}

impl From<Entry> for Completed {
    fn from(entry: Entry) -> Self {
        Completed {
            entry,
            silent: Vec::new(),
        }
    }
}

/// The outstanding work requests of one queue, oldest first.
///
/// Not a `VecDeque`: its capacity is no power of two, so each access and each end needs a
/// comparison more. A post and a poll take 30 instructions less this way.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Their number is a power of two, or 0. The work requests are in the slots from `head` up to
    /// `tail`, modulo that number; the other slots are vacant. Without slots, `head` is 0.
    slots: Vec<Entry>,
    head: usize,
    tail: usize,
    capacity: u32,
    ids: WorkIds,
}

impl Ring {
    /// The slots of the first allocation.
    const FIRST_SLOTS: usize = 16;

    pub(crate) fn new(queue: WorkQueue, capacity: u32) -> Ring {
        Ring {
            slots: Vec::new(),
            head: 0,
            tail: 0,
            capacity,
            ids: WorkIds::new(queue),
        }
    }

    /// Returns whether the queue is full until completions are polled.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity as usize
    }

    /// The number of work requests that it holds at most.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    /// The slot at a position, which is from `head` up to `tail`.
    #[inline]
    fn slot(&self, position: usize) -> usize {
        position & self.slots.len().wrapping_sub(1)
    }

    /// The positions of the work requests, oldest first.
    fn positions(&self) -> impl Iterator<Item = usize> + use<> {
        let head = self.head;
        (0..self.len()).map(move |offset| head.wrapping_add(offset))
    }

    /// Adds a work request. This precedes posting, as the completion may be polled right after it.
    // Inlined, since a move of the memory costs as much as a lock.
    #[inline(always)]
    pub(crate) fn push(&mut self, wr_id: u64, memory: Memory, kind: Kind) -> WorkId {
        if self.len() == self.slots.len() {
            self.grow();
        }
        let id = self.ids.next();
        let slot = self.slot(self.tail);
        // Each member is written to its place: a whole entry would be moved once more.
        let entry = &mut self.slots[slot];
        debug_assert!(entry.is_vacant());
        entry.id = id;
        entry.wr_id = wr_id;
        entry.kind = kind;
        // The old memory is none, for which a drop would test.
        mem::forget(mem::replace(&mut entry.memory, memory));
        self.tail = self.tail.wrapping_add(1);
        id
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let (oldest, len) = (self.slot(self.head), self.len());
        self.slots.rotate_left(oldest);
        (self.head, self.tail) = (0, len);
        let slots = (2 * self.slots.len()).max(Self::FIRST_SLOTS);
        self.slots.resize_with(slots, Entry::vacant);
    }

    /// Removes the newest work request, which could not be posted.
    pub(crate) fn pop_newest(&mut self) -> Option<Entry> {
        if self.tail == self.head {
            return None;
        }
        self.tail = self.tail.wrapping_sub(1);
        let newest = self.slot(self.tail);
        Some(self.slots[newest].take())
    }

    /// Removes the work request that completed, if it is the oldest one and no future awaits it,
    /// and passes it to `take`.
    #[inline]
    pub(crate) fn complete_oldest<R>(
        &mut self,
        id: WorkId,
        take: impl FnOnce(Entry) -> R,
    ) -> Option<R> {
        let slot = self.slot(self.head);
        let oldest = self.slots.get_mut(slot)?;
        if oldest.id != id || oldest.kind == Kind::Awaited {
            return None;
        }
        self.head = self.head.wrapping_add(1);
        Some(take(oldest.take()))
    }

    /// Removes the work request that completed.
    ///
    /// A success also removes the unsignaled ones before it: they have completed too, as a queue
    /// completes in order (10.8.5). Signaled ones before it stay: another thread has polled their
    /// completions and is about to remove them.
    pub(crate) fn complete(&mut self, id: WorkId, success: bool) -> Option<Completed> {
        let mut positions = self.positions();
        let found = positions.position(|position| self.slots[self.slot(position)].id == id)?;
        let mut empty = self.head.wrapping_add(found);
        let slot = self.slot(empty);
        let mut completed = Completed::from(self.slots[slot].take());
        if success {
            completed.silent.reserve_exact(found);
        }
        // The entries that stay close the gap; the vacant slots are then the oldest ones.
        for offset in (0..found).rev() {
            let slot = self.slot(self.head.wrapping_add(offset));
            if success && self.slots[slot].kind == Kind::Unsignaled {
                completed.silent.push(self.slots[slot].take());
            } else {
                let vacant = self.slot(empty);
                self.slots.swap(slot, vacant);
                empty = empty.wrapping_sub(1);
            }
        }
        self.head = empty.wrapping_add(1);
        Some(completed)
    }

    /// Removes all work requests. The result must not be dropped while a lock is held.
    pub(crate) fn take_all(&mut self) -> Vec<Entry> {
        (self.head, self.tail) = (0, 0);
        mem::take(&mut self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn push(ring: &mut Ring, wr_id: u64, signaled: bool) -> WorkId {
        let kind = match signaled {
            true => Kind::Signaled,
            false => Kind::Unsignaled,
        };
        ring.push(wr_id, Memory::default(), kind)
    }

    fn outstanding(ring: &Ring) -> Vec<u64> {
        let used = ring.slots.iter().filter(|slot| !slot.is_vacant()).count();
        assert_eq!(used, ring.len());
        let entries = ring
            .positions()
            .map(|position| &ring.slots[ring.slot(position)]);
        entries.map(|entry| entry.wr_id).collect()
    }

    #[test]
    fn a_success_completes_the_unsignaled_requests_before_it() {
        let mut ring = Ring::new(WorkQueue::Send, 4);
        push(&mut ring, 1, false);
        push(&mut ring, 2, false);
        let third = push(&mut ring, 3, true);
        push(&mut ring, 4, false);
        assert!(ring.is_full());
        assert_eq!(ring.complete(third, true).unwrap().entry.wr_id, 3);
        assert_eq!(outstanding(&ring), [4]);
    }

    #[test]
    fn completions_polled_out_of_order_by_threads_are_all_found() {
        let mut ring = Ring::new(WorkQueue::Send, 8);
        let ids: Vec<_> = (0..4).map(|n| push(&mut ring, n, n != 1)).collect();
        assert_eq!(ring.complete(ids[3], true).unwrap().entry.wr_id, 3);
        assert_eq!(outstanding(&ring), [0, 2]);
        assert_eq!(ring.complete(ids[0], true).unwrap().entry.wr_id, 0);
        assert_eq!(ring.complete(ids[2], true).unwrap().entry.wr_id, 2);
        assert!(ring.complete(ids[2], true).is_none());
    }

    #[test]
    fn a_failure_completes_only_its_own_request() {
        let mut ring = Ring::new(WorkQueue::Send, 8);
        let first = push(&mut ring, 1, false);
        let second = push(&mut ring, 2, true);
        assert_eq!(ring.complete(second, false).unwrap().entry.wr_id, 2);
        assert_eq!(ring.complete(first, false).unwrap().entry.wr_id, 1);
    }

    #[test]
    fn identifiers_of_queues_ascend_and_differ() {
        let mut rings =
            [WorkQueue::Send, WorkQueue::Receive, WorkQueue::Send].map(|queue| Ring::new(queue, 1));
        let mut all = Vec::new();
        for ring in &mut rings {
            let before = all.len();
            // The second one of these is of another block.
            for left in [WorkIds::STEP, 0] {
                all.push(ring.ids.next());
                ring.ids.next = ring.ids.end - left;
            }
            all.push(ring.ids.next());
            assert!(all[before..].is_sorted());
            assert!(all[before..].iter().all(|id| id.queue() == ring.ids.queue));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    /// Completes work requests of a ring and of a list in the same random order.
    #[test]
    fn a_ring_has_the_work_requests_of_a_list() {
        const CAPACITY: u32 = 40;
        for seed in 0..20 {
            // A linear congruential generator, of which the upper bits are used.
            let mut state: u64 = seed;
            let mut random = |below: usize| {
                state = (state.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
                (state >> 33) as usize % below
            };
            let mut ring = Ring::new(WorkQueue::Send, CAPACITY);
            // The positions wrap around while the ring is in use.
            push(&mut ring, 0, true);
            ring.pop_newest();
            (ring.head, ring.tail) = (usize::MAX - 500, usize::MAX - 500);
            let mut list: VecDeque<(WorkId, u64, bool)> = VecDeque::new();
            for wr_id in 0..2000 {
                if !ring.is_full() && random(5) < 3 {
                    let signaled = random(2) == 0;
                    let id = push(&mut ring, wr_id, signaled);
                    list.push_back((id, wr_id, signaled));
                    if random(20) == 0 {
                        assert_eq!(ring.pop_newest().map(|entry| entry.id), Some(id));
                        list.pop_back();
                    }
                } else if !list.is_empty() {
                    let at = match random(3) < 2 {
                        true => 0,
                        false => random(list.len()),
                    };
                    let success = random(2) == 0;
                    let (id, expected, _) = list[at];
                    let completed = match at {
                        0 => ring.complete_oldest(id, Completed::from),
                        _ => {
                            assert!(ring.complete_oldest(id, drop).is_none());
                            ring.complete(id, success)
                        }
                    };
                    let completed = completed.expect("it is outstanding");
                    assert_eq!(completed.entry.wr_id, expected);
                    let ends = |before: &(WorkId, u64, bool)| success && !before.2;
                    let before: Vec<_> = list.drain(..=at).take(at).collect();
                    let silent = before.iter().filter(|before| ends(before)).count();
                    assert_eq!(completed.silent.len(), silent);
                    for stays in before.into_iter().filter(|before| !ends(before)).rev() {
                        list.push_front(stays);
                    }
                }
                let expected: Vec<u64> = list.iter().map(|(_, wr_id, _)| *wr_id).collect();
                assert_eq!(outstanding(&ring), expected);
                assert_eq!(ring.is_full(), list.len() == CAPACITY as usize);
            }
        }
    }
}
