//! Outstanding work requests: posted, and the application has not polled their completions.
//!
//! An outstanding work request holds the memory it works on, so that memory stays registered. The
//! number of outstanding work requests is limited to the capacity of the queues, for which the
//! completion queues have reserved entries.
#![forbid(unsafe_code)]

use crate::buffer::Extent;
use crate::slices::Memory;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::tasks::RoomWaiters;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
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

/// An outstanding work request.
#[derive(Debug)]
pub(crate) struct Entry {
    id: WorkId,
    /// The application's identifier for it.
    pub(crate) wr_id: u64,
    /// The memory that it works on.
    pub(crate) memory: Memory,
    /// How it completes.
    pub(crate) kind: Kind,
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

/// The outstanding work requests of one queue, oldest first.
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

    /// Returns whether the queue is full until completions are polled.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// Adds a work request. This precedes posting, as the completion may be polled right after it.
    pub(crate) fn push(&mut self, wr_id: u64, memory: Memory, kind: Kind) -> &Entry {
        let id = WorkId::new(self.queue);
        self.entries.push_back(Entry {
            id,
            wr_id,
            memory,
            kind,
        });
        &self.entries[self.entries.len() - 1]
    }

    /// Removes the newest work request, which could not be posted.
    pub(crate) fn pop_newest(&mut self) -> Option<Entry> {
        self.entries.pop_back()
    }

    /// Removes the work request that completed, if it is the oldest one.
    #[inline]
    fn complete_oldest(&mut self, id: WorkId) -> Option<Entry> {
        match self.entries.front() {
            Some(oldest) if oldest.id == id => self.entries.pop_front(),
            _ => None,
        }
    }

    /// Removes the work request that completed.
    ///
    /// A success also removes the unsignaled ones before it: they have completed too, as a queue
    /// completes in order (10.8.5). Signaled ones before it stay: another thread has polled their
    /// completions and is about to remove them.
    fn complete(&mut self, id: WorkId, success: bool) -> Option<Completed> {
        let at = self.entries.partition_point(|entry| entry.id < id);
        if self.entries.get(at).is_none_or(|entry| entry.id != id) {
            return None;
        }
        let entry = self.entries.remove(at)?;
        let mut silent = Vec::new();
        if success && at > 0 {
            silent.reserve_exact(at);
            let mut signaled = Vec::new();
            for entry in self.entries.drain(..at) {
                match entry.kind {
                    Kind::Unsignaled => silent.push(entry),
                    Kind::Signaled | Kind::Awaited => signaled.push(entry),
                }
            }
            for entry in signaled.into_iter().rev() {
                self.entries.push_front(entry);
            }
        }
        Some(Completed { entry, silent })
    }
}

/// The outstanding receives of a shared receive queue. They complete in any order.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    entries: Mutex<HashMap<WorkId, Entry>>,
    capacity: usize,
}

impl SharedReceives {
    pub(crate) fn new(capacity: u32) -> SharedReceives {
        SharedReceives {
            entries: Mutex::default(),
            capacity: capacity as usize,
        }
    }

    /// Adds a receive before it is posted, and returns its identifier.
    ///
    /// Returns the memory if the queue is full.
    pub(crate) fn add(&self, wr_id: u64, memory: Memory) -> Result<WorkId, Memory> {
        let mut entries = lock(&self.entries);
        if entries.len() >= self.capacity {
            return Err(memory);
        }
        let id = WorkId::new(WorkQueue::Receive);
        let entry = Entry {
            id,
            wr_id,
            memory,
            kind: Kind::Signaled,
        };
        entries.insert(id, entry);
        Ok(id)
    }

    /// Removes the receive that completed or could not be posted.
    pub(crate) fn remove(&self, id: WorkId) -> Option<Entry> {
        lock(&self.entries).remove(&id)
    }

    /// The number of outstanding receives.
    pub(crate) fn len(&self) -> usize {
        lock(&self.entries).len()
    }
}

impl Entry {
    /// The part of a buffer that it uses.
    pub(crate) fn extent(&self) -> Extent {
        match self.id.queue() {
            WorkQueue::Send => Extent::Length,
            WorkQueue::Receive => Extent::Capacity,
        }
    }

    /// The identifier to post it with.
    pub(crate) fn id(&self) -> WorkId {
        self.id
    }
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

/// The receives that complete on a queue pair.
#[derive(Debug)]
enum Receives {
    Own(Mutex<Ring>),
    Shared(Arc<SharedReceives>),
}

/// The outstanding work requests of a queue pair, including those of its shared receive queue.
#[derive(Debug)]
pub(crate) struct Outstanding {
    sends: Mutex<Ring>,
    receives: Receives,
    /// The tasks that wait for room in the send queue and in the receive queue.
    room: [RoomWaiters; 2],
}

impl Outstanding {
    /// For a queue pair with a receive queue of its own.
    pub(crate) fn new(max_send_wr: u32, max_recv_wr: u32) -> Outstanding {
        let receives = Mutex::new(Ring::new(WorkQueue::Receive, max_recv_wr));
        Outstanding::with(max_send_wr, Receives::Own(receives))
    }

    /// For a queue pair that takes receives from a shared receive queue.
    pub(crate) fn shared(max_send_wr: u32, receives: &Arc<SharedReceives>) -> Outstanding {
        Outstanding::with(max_send_wr, Receives::Shared(Arc::clone(receives)))
    }

    fn with(max_send_wr: u32, receives: Receives) -> Outstanding {
        Outstanding {
            sends: Mutex::new(Ring::new(WorkQueue::Send, max_send_wr)),
            receives,
            room: Default::default(),
        }
    }

    /// The sends. A thread that posts holds the guard, so the order here is that of the send queue.
    pub(crate) fn sends(&self) -> MutexGuard<'_, Ring> {
        lock(&self.sends)
    }

    /// The receives, if the queue pair has a receive queue of its own. Same rule as for sends.
    pub(crate) fn own_receives(&self) -> Option<MutexGuard<'_, Ring>> {
        match &self.receives {
            Receives::Own(ring) => Some(lock(ring)),
            Receives::Shared(_) => None,
        }
    }

    /// Removes the work request of this completion if it is the oldest one of its queue. It is then
    /// the only one that the completion ends.
    #[inline]
    pub(crate) fn complete_oldest(&self, id: WorkId) -> Option<Entry> {
        match (id.queue(), &self.receives) {
            (WorkQueue::Send, _) => self.sends().complete_oldest(id),
            (WorkQueue::Receive, Receives::Own(ring)) => lock(ring).complete_oldest(id),
            (WorkQueue::Receive, Receives::Shared(_)) => None,
        }
    }

    /// Removes the work requests that this completion ends; `None` if it was already removed.
    pub(crate) fn complete(&self, id: WorkId, success: bool) -> Option<Completed> {
        match (id.queue(), &self.receives) {
            (WorkQueue::Send, _) => self.sends().complete(id, success),
            (WorkQueue::Receive, Receives::Own(ring)) => lock(ring).complete(id, success),
            (WorkQueue::Receive, Receives::Shared(receives)) => {
                receives.remove(id).map(Completed::from)
            }
        }
    }

    /// The tasks that wait for room in a queue.
    pub(crate) fn room(&self, queue: WorkQueue) -> &RoomWaiters {
        &self.room[queue as usize]
    }

    /// Removes all work requests in the queue pair's own queues, at a reset.
    pub(crate) fn clear(&self) {
        let sends = std::mem::take(&mut self.sends().entries);
        let receives = self
            .own_receives()
            .map(|mut ring| std::mem::take(&mut ring.entries));
        drop((sends, receives));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ring: &mut Ring, wr_id: u64, signaled: bool) -> WorkId {
        let kind = match signaled {
            true => Kind::Signaled,
            false => Kind::Unsignaled,
        };
        ring.push(wr_id, Memory::default(), kind).id()
    }

    fn outstanding(ring: &Ring) -> Vec<u64> {
        ring.entries.iter().map(|entry| entry.wr_id).collect()
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
    fn an_identifier_encodes_its_queue_and_is_not_reused() {
        let outstanding = Outstanding::new(1, 1);
        let send = push(&mut outstanding.sends(), 7, true);
        let receive = push(&mut outstanding.own_receives().unwrap(), 7, true);
        assert_eq!(send.queue(), WorkQueue::Send);
        assert_eq!(receive.queue(), WorkQueue::Receive);
        outstanding.clear();
        assert!(outstanding.complete(send, true).is_none());
        let next = push(&mut outstanding.sends(), 7, true);
        assert!(next > send);
    }

    #[test]
    fn shared_receives_complete_once_on_any_queue_pair_in_any_order() {
        let shared = Arc::new(SharedReceives::new(2));
        let users = [(); 2].map(|()| Outstanding::shared(1, &shared));
        assert!(users[0].own_receives().is_none());
        let first = shared.add(1, Memory::default()).unwrap();
        let second = shared.add(2, Memory::default()).unwrap();
        assert!(shared.add(3, Memory::default()).is_err());
        assert_eq!(users[1].complete(second, true).unwrap().entry.wr_id, 2);
        assert!(users[0].complete(second, true).is_none());
        shared.add(3, Memory::default()).unwrap();
        assert_eq!(users[0].complete(first, false).unwrap().entry.wr_id, 1);
        users[0].clear();
        assert_eq!(
            shared.len(),
            1,
            "a reset of one queue pair keeps the others"
        );
    }
}
