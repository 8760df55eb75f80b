//! Outstanding work requests of the Rust API: each owns its memory until its completion, which
//! returns the memory once.

use crate::outstanding::{Outstanding, SharedReceives};
use crate::sync::{Mutex, lock};
use crate::system::{check, join, thread};
use crate::work_ring::{Completed, Kind, WorkId, WorkQueue};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory of a work request, which counts how often it is released.
///
/// The counter is not one of loom's: it is read only after all threads have ended.
#[derive(Debug, Default)]
pub(crate) struct Memory(Option<Arc<AtomicUsize>>);

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(released) = &self.0 {
            released.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The number of times that the memory of each work request was released.
#[derive(Clone, Debug, Default)]
struct Released([Arc<AtomicUsize>; 3]);

impl Released {
    fn memory(&self, number: usize) -> Memory {
        Memory(Some(Arc::clone(&self.0[number])))
    }

    fn counts(&self) -> [usize; 3] {
        [0, 1, 2].map(|number: usize| self.0[number].load(Ordering::Relaxed))
    }
}

fn post(pair: &Outstanding, number: usize, memory: Memory, kind: Kind) -> WorkId {
    pair.sends().push(number as u64, memory, kind)
}

/// Models a poll of the Rust API's completion queue that has taken a completion.
fn poll(pair: &Outstanding, id: WorkId) -> Option<Completed> {
    (pair.complete_oldest(id, Completed::from)).or_else(|| pair.complete(id, true))
}

/// The numbers of the work requests that a completion ends.
fn ended(completed: Option<Completed>) -> Vec<u64> {
    let Completed { entry, silent } = completed.expect("the work request is outstanding");
    let silent = silent.iter().map(|silent| silent.wr_id);
    silent.chain([entry.wr_id]).collect()
}

/// Two threads have polled one completion each, in any order. Together they return each work
/// request once, including the unsignaled one before the two.
pub fn polled_work_requests_are_returned_once() {
    check(3, || {
        let released = Released::default();
        let pair = Arc::new(Outstanding::new(3, 0));
        post(&pair, 0, released.memory(0), Kind::Unsignaled);
        let ids = [1, 2].map(|n| post(&pair, n, released.memory(n), Kind::Signaled));
        let pollers = ids.map(|id| thread(&pair, move |pair| ended(poll(pair, id))));
        let mut returned: Vec<u64> = pollers.into_iter().flat_map(join).collect();
        returned.sort_unstable();
        assert_eq!(returned, [0, 1, 2]);
        assert_eq!(released.counts(), [1, 1, 1]);
    });
}

/// A completion may be polled while the posting thread still holds the queue. Its work request is
/// already outstanding.
pub fn posted_work_request_is_found_by_its_completion() {
    check(3, || {
        let released = Released::default();
        let pair = Arc::new(Outstanding::new(2, 0));
        // The driver's completion queue.
        let completed = Arc::new(Mutex::new(VecDeque::new()));
        let driver = Arc::clone(&completed);
        let memory = [0, 1].map(|number| released.memory(number));
        let poster = thread(&pair, move |pair| {
            for (number, memory) in memory.into_iter().enumerate() {
                let mut ring = pair.sends();
                let id = ring.push(number as u64, memory, Kind::Signaled);
                lock(&driver).push_back(id);
            }
        });
        let mut returned = Vec::new();
        for _ in 0..2 {
            let oldest = lock(&completed).pop_front();
            returned.extend(oldest.into_iter().flat_map(|id| ended(poll(&pair, id))));
        }
        join(poster);
        let rest = std::mem::take(&mut *lock(&completed));
        returned.extend(rest.into_iter().flat_map(|id| ended(poll(&pair, id))));
        assert_eq!(returned, [0, 1]);
        assert_eq!(released.counts(), [1, 1, 0]);
    });
}

/// A queue pair is reset after a thread has polled a completion. Either the poll returns the work
/// request, or the reset releases it.
pub fn reset_and_poll_release_memory_once() {
    check(3, || {
        let released = Released::default();
        let pair = Arc::new(Outstanding::new(2, 1));
        let id = post(&pair, 0, released.memory(0), Kind::Signaled);
        post(&pair, 1, released.memory(1), Kind::Signaled);
        if let Some(mut ring) = pair.own_receives() {
            ring.push(2, released.memory(2), Kind::Signaled);
        }
        let poller = thread(&pair, move |pair| drop(poll(pair, id)));
        pair.clear();
        join(poller);
        assert_eq!(released.counts(), [1, 1, 1]);
        assert!(poll(&pair, id).is_none());
    });
}

/// Two queue pairs complete receives of a shared receive queue while a third receive is posted.
pub fn shared_receives_are_returned_once() {
    check(3, || {
        let released = Released::default();
        let shared = Arc::new(SharedReceives::new(3));
        let add = |number: usize| shared.add(number as u64, released.memory(number));
        let ids = [0, 1].map(|number| add(number).expect("there is room"));
        let pollers = ids.map(|id| {
            assert_eq!(id.queue(), WorkQueue::Receive);
            let pair = Arc::new(Outstanding::shared(0, &shared));
            thread(&pair, move |pair| ended(poll(pair, id)))
        });
        let third = add(2).expect("there is room");
        let mut returned: Vec<u64> = pollers.into_iter().flat_map(join).collect();
        returned.sort_unstable();
        assert_eq!(returned, [0, 1]);
        assert_eq!(released.counts(), [1, 1, 0]);
        assert!(shared.remove(third).is_some());
    });
}
