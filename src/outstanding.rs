//! Outstanding work requests: posted, and the application has not polled their completions.
//!
//! An outstanding work request holds the memory it works on, so that memory stays registered. The
//! number of outstanding work requests is limited to the capacity of the queues, for which the
//! completion queues have reserved entries.
#![forbid(unsafe_code)]

use crate::slices::Memory;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::tasks::RoomWaiters;
use crate::work_ring::{Completed, Entry, Kind, Ring, WorkId, WorkIds, WorkQueue};
use std::collections::HashMap;
use std::sync::Arc;

/// The outstanding receives of a shared receive queue. They complete in any order.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    receives: Mutex<Receives>,
    capacity: usize,
}

#[derive(Debug)]
struct Receives {
    entries: HashMap<WorkId, Entry>,
    ids: WorkIds,
}

impl SharedReceives {
    pub(crate) fn new(capacity: u32) -> SharedReceives {
        SharedReceives {
            receives: Mutex::new(Receives {
                entries: HashMap::new(),
                ids: WorkIds::new(WorkQueue::Receive),
            }),
            capacity: capacity as usize,
        }
    }

    /// Adds a receive before it is posted, and returns its identifier.
    ///
    /// Returns the memory if the queue is full.
    pub(crate) fn add(&self, wr_id: u64, memory: Memory) -> Result<WorkId, Memory> {
        let mut receives = lock(&self.receives);
        if receives.entries.len() >= self.capacity {
            return Err(memory);
        }
        let id = receives.ids.next();
        let entry = Entry {
            id,
            wr_id,
            memory,
            kind: Kind::Signaled,
        };
        receives.entries.insert(id, entry);
        Ok(id)
    }

    /// Removes the receive that completed or could not be posted.
    pub(crate) fn remove(&self, id: WorkId) -> Option<Entry> {
        lock(&self.receives).entries.remove(&id)
    }

    /// The number of outstanding receives.
    pub(crate) fn len(&self) -> usize {
        lock(&self.receives).entries.len()
    }
}

/// The outstanding work requests of one queue.
#[derive(Debug)]
struct Queue {
    ring: Mutex<Ring>,
    /// The tasks that wait for room.
    room: RoomWaiters,
}

impl Queue {
    fn new(queue: WorkQueue, capacity: u32) -> Queue {
        Queue {
            ring: Mutex::new(Ring::new(queue, capacity)),
            room: RoomWaiters::default(),
        }
    }
}

/// The outstanding work requests of a queue pair, including those of its shared receive queue.
#[derive(Debug)]
pub(crate) struct Outstanding {
    sends: Queue,
    /// Always empty if receives are shared.
    receives: Queue,
    shared: Option<Arc<SharedReceives>>,
}

impl Outstanding {
    /// For a queue pair with a receive queue of its own.
    pub(crate) fn new(max_send_wr: u32, max_recv_wr: u32) -> Outstanding {
        Outstanding {
            sends: Queue::new(WorkQueue::Send, max_send_wr),
            receives: Queue::new(WorkQueue::Receive, max_recv_wr),
            shared: None,
        }
    }

    /// For a queue pair that takes receives from a shared receive queue.
    pub(crate) fn shared(max_send_wr: u32, receives: &Arc<SharedReceives>) -> Outstanding {
        Outstanding {
            shared: Some(Arc::clone(receives)),
            ..Outstanding::new(max_send_wr, 0)
        }
    }

    /// The sends. A thread that posts holds the guard, so the order here is that of the send queue.
    #[inline]
    pub(crate) fn sends(&self) -> MutexGuard<'_, Ring> {
        lock(&self.sends.ring)
    }

    /// The receives, if the queue pair has a receive queue of its own. Same rule as for sends.
    #[inline]
    pub(crate) fn own_receives(&self) -> Option<MutexGuard<'_, Ring>> {
        match &self.shared {
            None => Some(lock(&self.receives.ring)),
            Some(_) => None,
        }
    }

    #[inline]
    fn queue(&self, queue: WorkQueue) -> &Queue {
        match queue {
            WorkQueue::Send => &self.sends,
            WorkQueue::Receive => &self.receives,
        }
    }

    /// Removes the work request of this completion, and passes it to `take` while its queue is
    /// locked, if that is all that the completion causes: it is the oldest one of a queue of this
    /// queue pair, so it is the only one that the completion ends, and no task waits for it or for
    /// room in the queue.
    #[inline]
    pub(crate) fn complete_oldest<R>(
        &self,
        id: WorkId,
        take: impl FnOnce(Entry) -> R,
    ) -> Option<R> {
        let queue = self.queue(id.queue());
        let mut ring = lock(&queue.ring);
        // A task that waits from now on finds the queue with room.
        match queue.room.any() {
            true => None,
            false => ring.complete_oldest(id, take),
        }
    }

    /// Removes the work requests that this completion ends; `None` if it was already removed.
    pub(crate) fn complete(&self, id: WorkId, success: bool) -> Option<Completed> {
        match (id.queue(), &self.shared) {
            (WorkQueue::Receive, Some(receives)) => receives.remove(id).map(Completed::from),
            (queue, _) => lock(&self.queue(queue).ring).complete(id, success),
        }
    }

    /// The tasks that wait for room in a queue.
    pub(crate) fn room(&self, queue: WorkQueue) -> &RoomWaiters {
        &self.queue(queue).room
    }

    /// Removes all work requests in the queue pair's own queues, at a reset.
    pub(crate) fn clear(&self) {
        for queue in [&self.sends, &self.receives] {
            let all = lock(&queue.ring).take_all();
            drop(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work_ring::Kind;

    fn push(ring: &mut Ring, wr_id: u64) -> WorkId {
        ring.push(wr_id, Memory::default(), Kind::Signaled)
    }

    #[test]
    fn an_identifier_encodes_its_queue_and_is_not_reused() {
        let outstanding = Outstanding::new(1, 1);
        let send = push(&mut outstanding.sends(), 7);
        let receive = push(&mut outstanding.own_receives().unwrap(), 7);
        assert_eq!(send.queue(), WorkQueue::Send);
        assert_eq!(receive.queue(), WorkQueue::Receive);
        outstanding.clear();
        assert!(outstanding.complete(send, true).is_none());
        let next = push(&mut outstanding.sends(), 7);
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
