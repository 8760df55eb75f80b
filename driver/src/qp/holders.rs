//! Who has a queue pair: its maker, and, of the target of an extended reliable connection, all who
//! opened it.

use super::share::Share;
use crate::event_queue::lock;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

/// Who has a queue pair.
#[derive(Debug)]
pub(super) struct Holders(Mutex<List>);

#[derive(Debug)]
struct List {
    maker: bool,
    shares: Vec<Weak<Share>>,
}

impl Holders {
    /// The maker alone.
    pub(super) fn new() -> Self {
        Holders(Mutex::new(List {
            maker: true,
            shares: Vec::new(),
        }))
    }

    /// Whether the maker has it still, and the others who do.
    pub(super) fn all(&self) -> (bool, Vec<Arc<Share>>) {
        let list = lock(&self.0);
        let shares = list.shares.iter().filter_map(Weak::upgrade).collect();
        (list.maker, shares)
    }

    /// One more, unless nobody has it any more.
    pub(super) fn join(&self, share: &Arc<Share>) -> bool {
        let mut list = lock(&self.0);
        let alive = list.maker || !list.shares.is_empty();
        if alive {
            list.shares.push(Arc::downgrade(share));
        }
        alive
    }

    /// The maker leaves. True when nobody is left.
    pub(super) fn leave_maker(&self) -> bool {
        let mut list = lock(&self.0);
        list.maker = false;
        list.shares.is_empty()
    }

    /// Another one leaves. True when nobody is left.
    pub(super) fn leave(&self, share: &Share) -> bool {
        let mut list = lock(&self.0);
        list.shares.retain(|other| !ptr::eq(other.as_ptr(), share));
        !list.maker && list.shares.is_empty()
    }
}
