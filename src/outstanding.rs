//! Work requests that have been posted and whose completions the program has not taken yet.
//!
//! They hold the memory that they work on, so it stays registered until then. They also bound what a
//! queue pair can complete: as many as its queues are long, for which its completion queues have
//! room.
#![forbid(unsafe_code)]

use crate::mr::LocalSlice;
use crate::wait::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Which of a queue pair's two queues a work request was in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkQueue {
    /// The send queue: sends, RDMA and atomics.
    Send,
    /// The receive queue.
    Receive,
}

/// The name by which the driver knows a work request: never used twice in a process, so that a late
/// completion of a queue pair that is gone is not mistaken for another's. The lowest bit is the queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WorkId(u64);

impl WorkId {
    fn new(queue: WorkQueue) -> WorkId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        WorkId(number << 1 | u64::from(queue == WorkQueue::Receive))
    }

    pub(crate) fn from_driver(wr_id: u64) -> WorkId {
        WorkId(wr_id)
    }

    pub(crate) fn to_driver(self) -> u64 {
        self.0
    }

    pub(crate) fn queue(self) -> WorkQueue {
        match self.0 & 1 {
            0 => WorkQueue::Send,
            _ => WorkQueue::Receive,
        }
    }
}

/// A work request under way.
#[derive(Debug)]
pub(crate) struct Entry {
    id: WorkId,
    /// The program's own number for it.
    pub(crate) wr_id: u64,
    /// The memory that it works on.
    pub(crate) buffers: Vec<LocalSlice>,
    /// Whether its success makes a completion.
    signaled: bool,
}

/// One queue's, oldest first.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: VecDeque<Entry>,
    capacity: usize,
    queue: WorkQueue,
}

impl Ring {
    fn new(queue: WorkQueue, capacity: u32) -> Ring {
        Ring {
            entries: VecDeque::new(),
            capacity: capacity as usize,
            queue,
        }
    }

    /// Whether no more can be posted before completions are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// Adds one. It comes before posting, as its completion may be taken the moment it is posted.
    pub(crate) fn push(&mut self, wr_id: u64, buffers: Vec<LocalSlice>, signaled: bool) -> &Entry {
        let id = WorkId::new(self.queue);
        self.entries.push_back(Entry {
            id,
            wr_id,
            buffers,
            signaled,
        });
        &self.entries[self.entries.len() - 1]
    }

    /// Takes back the newest, which could not be posted.
    pub(crate) fn take_back(&mut self) -> Option<Entry> {
        self.entries.pop_back()
    }

    /// Removes the one that completed. With a success go the unsignaled ones before it, which have
    /// completed too, as a queue completes in order (10.8.5). Signaled ones before it stay: another
    /// thread has taken their completions, and will ask for them.
    fn complete(&mut self, id: WorkId, success: bool) -> Option<Completed> {
        let at = self.entries.partition_point(|entry| entry.id < id);
        if self.entries.get(at).is_none_or(|entry| entry.id != id) {
            return None;
        }
        let entry = self.entries.remove(at)?;
        let mut silent = Vec::new();
        if success && at > 0 {
            let rest = self.entries.split_off(at);
            let before = std::mem::replace(&mut self.entries, rest);
            let (signaled, unsignaled) = before.into_iter().partition::<Vec<_>, _>(|e| e.signaled);
            for entry in signaled.into_iter().rev() {
                self.entries.push_front(entry);
            }
            silent = unsignaled;
        }
        Some(Completed {
            entry,
            _silent: silent,
        })
    }
}

impl Entry {
    /// The name to post it by.
    pub(crate) fn id(&self) -> WorkId {
        self.id
    }
}

/// What a completion has ended. Memory may be deregistered when it is dropped, so that must not
/// happen under a lock.
#[derive(Debug)]
pub(crate) struct Completed {
    /// The work request that the completion is of.
    pub(crate) entry: Entry,
    /// Those before it that make no completion of their own.
    _silent: Vec<Entry>,
}

/// The outstanding work requests of a queue pair.
#[derive(Debug)]
pub(crate) struct Outstanding {
    sends: Mutex<Ring>,
    receives: Mutex<Ring>,
}

impl Outstanding {
    pub(crate) fn new(max_send_wr: u32, max_recv_wr: u32) -> Outstanding {
        Outstanding {
            sends: Mutex::new(Ring::new(WorkQueue::Send, max_send_wr)),
            receives: Mutex::new(Ring::new(WorkQueue::Receive, max_recv_wr)),
        }
    }

    /// The ring of a queue. Whoever posts holds it meanwhile, so that its order is the queue's.
    pub(crate) fn ring(&self, queue: WorkQueue) -> MutexGuard<'_, Ring> {
        match queue {
            WorkQueue::Send => lock(&self.sends),
            WorkQueue::Receive => lock(&self.receives),
        }
    }

    /// What the completion with this name has ended; `None` for one of the past.
    pub(crate) fn complete(&self, id: WorkId, success: bool) -> Option<Completed> {
        self.ring(id.queue()).complete(id, success)
    }

    /// Forgets all, for a queue pair that is reset.
    pub(crate) fn clear(&self) {
        for queue in [WorkQueue::Send, WorkQueue::Receive] {
            let entries = std::mem::take(&mut self.ring(queue).entries);
            drop(entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ring: &mut Ring, wr_id: u64, signaled: bool) -> WorkId {
        ring.push(wr_id, Vec::new(), signaled).id()
    }

    fn waiting(ring: &Ring) -> Vec<u64> {
        ring.entries.iter().map(|entry| entry.wr_id).collect()
    }

    #[test]
    fn a_success_ends_the_unsignaled_ones_before_it() {
        let mut ring = Ring::new(WorkQueue::Send, 4);
        push(&mut ring, 1, false);
        push(&mut ring, 2, false);
        let third = push(&mut ring, 3, true);
        push(&mut ring, 4, false);
        assert!(ring.is_full());
        assert_eq!(ring.complete(third, true).unwrap().entry.wr_id, 3);
        assert_eq!(waiting(&ring), [4]);
    }

    #[test]
    fn completions_that_threads_take_out_of_order_are_all_known() {
        let mut ring = Ring::new(WorkQueue::Send, 8);
        let ids: Vec<_> = (0..4).map(|n| push(&mut ring, n, n != 1)).collect();
        assert_eq!(ring.complete(ids[3], true).unwrap().entry.wr_id, 3);
        assert_eq!(waiting(&ring), [0, 2]);
        assert_eq!(ring.complete(ids[0], true).unwrap().entry.wr_id, 0);
        assert_eq!(ring.complete(ids[2], true).unwrap().entry.wr_id, 2);
        assert!(ring.complete(ids[2], true).is_none());
    }

    #[test]
    fn a_failure_ends_itself_alone() {
        let mut ring = Ring::new(WorkQueue::Send, 8);
        let first = push(&mut ring, 1, false);
        let second = push(&mut ring, 2, true);
        assert_eq!(ring.complete(second, false).unwrap().entry.wr_id, 2);
        assert_eq!(ring.complete(first, false).unwrap().entry.wr_id, 1);
    }

    #[test]
    fn a_name_tells_its_queue_and_is_not_used_again() {
        let outstanding = Outstanding::new(1, 1);
        let send = outstanding
            .ring(WorkQueue::Send)
            .push(7, Vec::new(), true)
            .id();
        let receive = outstanding
            .ring(WorkQueue::Receive)
            .push(7, Vec::new(), true)
            .id();
        assert_eq!(send.queue(), WorkQueue::Send);
        assert_eq!(receive.queue(), WorkQueue::Receive);
        outstanding.clear();
        assert!(outstanding.complete(send, true).is_none());
        let next = outstanding
            .ring(WorkQueue::Send)
            .push(7, Vec::new(), true)
            .id();
        assert!(next > send);
    }
}
