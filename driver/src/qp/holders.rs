//! The owners of a queue pair: its creator, and those that opened an XRC target.

use super::share::Share;
use crate::event_queue::lock;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

/// The owners of a queue pair.
#[derive(Debug)]
pub(super) struct Holders(Mutex<List>);

#[derive(Debug)]
struct List {
    maker: bool,
    shares: Vec<Weak<Share>>,
}

impl Holders {
    /// Returns a list with the creator as the only owner.
    pub(super) fn new() -> Self {
        Holders(Mutex::new(List {
            maker: true,
            shares: Vec::new(),
        }))
    }

    /// Returns whether the creator is still an owner, and the other owners.
    pub(super) fn all(&self) -> (bool, Vec<Arc<Share>>) {
        let list = lock(&self.0);
        let shares = list.shares.iter().filter_map(Weak::upgrade).collect();
        (list.maker, shares)
    }

    /// Adds an owner. Returns false if the last owner has left already.
    pub(super) fn join(&self, share: &Arc<Share>) -> bool {
        let mut list = lock(&self.0);
        let alive = list.maker || !list.shares.is_empty();
        if alive {
            list.shares.push(Arc::downgrade(share));
        }
        alive
    }

    /// Removes the creator. Returns true if no owner is left.
    pub(super) fn leave_maker(&self) -> bool {
        let mut list = lock(&self.0);
        list.maker = false;
        list.shares.is_empty()
    }

    /// Removes an owner other than the creator. Returns true if no owner is left.
    pub(super) fn leave(&self, share: &Share) -> bool {
        let mut list = lock(&self.0);
        list.shares.retain(|other| !ptr::eq(other.as_ptr(), share));
        !list.maker && list.shares.is_empty()
    }
}
