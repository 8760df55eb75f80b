//! The free blocks of a pool, and the tasks that wait for one.
//!
//! A block that is returned wakes one task. The task takes the block itself when it is polled, so a
//! thread may take the block before it. The task then waits again, at its old place in the order;
//! the thread that returns the block wakes it. A task that is woken and dropped before it has taken
//! a block passes the wake-up on. So while blocks are free and tasks wait, a task has been woken.
#![forbid(unsafe_code)]

use crate::sync::{Mutex, lock};
use crate::tasks::RoomWaiters;
use std::task::{Poll, Waker};

/// See the module.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// The offsets of the free blocks. Its capacity is that of the pool, so it never grows.
    free: Mutex<Vec<usize>>,
    waiters: RoomWaiters,
}

impl FreeList {
    pub(crate) fn new(free: Vec<usize>) -> FreeList {
        FreeList {
            free: Mutex::new(free),
            waiters: RoomWaiters::default(),
        }
    }

    pub(crate) fn take(&self) -> Option<usize> {
        lock(&self.free).pop()
    }

    pub(crate) fn put(&self, block: usize) {
        lock(&self.free).push(block);
        // A task is in the list before it looks for a block. So either this thread finds it in the
        // list, or the task finds the block: the lock of the blocks orders the two.
        if self.waiters.any() {
            self.waiters.notify(1);
        }
    }

    /// Takes a block, or stores the waker of the task. `ticket` is the task's place in the order,
    /// and initially `None`. A task that stops polling with a ticket calls [`FreeList::leave`].
    pub(crate) fn poll_take(&self, ticket: &mut Option<u64>, waker: &Waker) -> Poll<usize> {
        let mut taken = self.take();
        if taken.is_none() {
            *ticket = Some(self.waiters.wait(*ticket, waker));
            taken = self.take();
        }
        let Some(block) = taken else {
            return Poll::Pending;
        };
        if let Some(ticket) = ticket.take() {
            self.waiters.remove(ticket);
        }
        Poll::Ready(block)
    }

    /// Removes a task that no longer waits.
    pub(crate) fn leave(&self, ticket: u64) {
        self.waiters.leave(ticket);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.free).len()
    }
}
