//! The lists of queue pairs with deferred sends or delayed ACKs, and their flush timers.
//!
//! There is one list, which each poll flushes, until the process opens several receive sockets.
//! Then each socket has a list, so that threads that poll different completion queues do not take
//! each other's queue pairs.

use super::timer_fd::TimerFd;
use crate::loss::ClosedDescriptors;
use crate::queues::qp::Qp;
use crate::scheduling::affinity::Affinity;
use crate::scheduling::deferred::Deferred;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// A list with its flush timer.
pub(super) type List = Deferred<Arc<Qp>, TimerFd>;

/// The lists of the process.
#[derive(Debug)]
pub(super) struct DeferredLists {
    first: List,
    /// The lists of the receive sockets from number 1 on.
    others: OnceLock<Box<[List]>>,
    /// The flush timers.
    timers: OwnedFd,
}

impl DeferredLists {
    pub(super) fn new(loss: &Arc<ClosedDescriptors>) -> io::Result<Self> {
        let timers = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(DeferredLists {
            first: list(&timers, loss)?,
            others: OnceLock::new(),
            timers,
        })
    }

    /// Creates lists for `count` receive sockets, a power of two, once.
    pub(super) fn split(&self, count: usize, loss: &Arc<ClosedDescriptors>) -> io::Result<()> {
        if self.others.get().is_none() {
            let others: io::Result<Box<[List]>> =
                (1..count).map(|_| list(&self.timers, loss)).collect();
            let _ = self.others.set(others?);
        }
        Ok(())
    }

    /// Returns the list, if there is only one.
    #[inline]
    pub(super) fn only(&self) -> Option<&List> {
        self.others.get().is_none().then_some(&self.first)
    }

    /// Returns the list for queue pairs with this affinity, and whether there are others.
    #[inline]
    pub(super) fn of(&self, affinity: Affinity) -> (&List, bool) {
        match self.others.get() {
            None => (&self.first, false),
            Some(others) => {
                let number = affinity.socket(others.len() + 1);
                let other = number.checked_sub(1).map(|index| &others[index]);
                (other.unwrap_or(&self.first), true)
            }
        }
    }

    /// Returns all lists.
    pub(super) fn all(&self) -> impl Iterator<Item = &List> {
        let others = self.others.get().map_or(&[][..], |others| others);
        std::iter::once(&self.first).chain(others)
    }
}

/// Readable when a flush timer has expired.
impl AsFd for DeferredLists {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timers.as_fd()
    }
}

/// Returns an empty list whose timer is among `timers`.
fn list(timers: &OwnedFd, loss: &Arc<ClosedDescriptors>) -> io::Result<List> {
    let timer = TimerFd::new(loss)?;
    let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    epoll::add(timers, &timer, data, flags)?;
    Ok(Deferred::with(timer))
}
