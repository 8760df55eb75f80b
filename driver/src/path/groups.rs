//! Multicast groups: one socket for each group on each interface that queue pairs of this process
//! are attached to.

use crate::lock_order::{Ordered, Rank};
use crate::ports::Receiver;
use crate::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use urxe_net::Group;

/// A group that is joined, with its socket and receive buffers.
pub(super) struct Joined {
    pub(super) group: Group,
    pub(super) receiver: Mutex<Receiver>,
}

/// All joined groups. A thread that changes them also changes the attached queue pairs, and locks
/// this list first.
#[derive(Default)]
pub(super) struct Groups {
    list: RwLock<Vec<Arc<Joined>>>,
    /// Whether the list has entries; read without a lock.
    any: AtomicBool,
}

impl Groups {
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Locks the list for changing it. [`Groups::changed`] ends the change.
    pub(super) fn write(&self) -> Ordered<RwLockWriteGuard<'_, Vec<Arc<Joined>>>> {
        Ordered::take(Rank::Groups, || {
            self.list.write().unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Publishes whether the list, which the caller has changed, has entries.
    pub(super) fn changed(&self, list: &[Arc<Joined>]) {
        self.any.store(!list.is_empty(), Ordering::Release);
    }

    pub(super) fn list(&self) -> Ordered<RwLockReadGuard<'_, Vec<Arc<Joined>>>> {
        Ordered::take(Rank::Groups, || {
            self.list.read().unwrap_or_else(PoisonError::into_inner)
        })
    }
}
