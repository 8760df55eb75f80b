//! Queue pairs by number, and by the multicast groups that they are attached to.

use super::qp::Qp;
use crate::lock_order::{Ordered, Rank};
use crate::tables::ByNumber;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use urxe_net::LocalAddress;
use urxe_proto::ids::Qpn;
use urxe_proto::queue::NoMemory;

/// The queue pairs of the process. Packets lock it for reading.
#[derive(Debug, Default)]
pub(crate) struct QpTable(RwLock<QpMap>);

impl QpTable {
    /// Locks the table for reading.
    pub(crate) fn read(&self) -> Ordered<RwLockReadGuard<'_, QpMap>> {
        Ordered::take(Rank::QueuePairs, || {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Locks the table for writing: waits until no thread handles packets.
    pub(crate) fn write(&self) -> Ordered<RwLockWriteGuard<'_, QpMap>> {
        Ordered::take(Rank::QueuePairs, || {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Returns the queue pair with this number.
    pub(crate) fn find(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.read().get(qpn).map(Arc::clone)
    }
}

/// The queue pairs by number, and by multicast group.
#[derive(Debug, Default)]
pub(crate) struct QpMap {
    by_number: ByNumber<Qp>,
    /// The queue pairs that are attached to each multicast group.
    groups: HashMap<LocalAddress, Vec<Arc<Qp>>>,
}

impl QpMap {
    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Arc<Qp>> {
        self.by_number.get(qpn)
    }

    /// Returns the queue pairs that are attached to a multicast group.
    pub(crate) fn members(&self, group: LocalAddress) -> &[Arc<Qp>] {
        self.groups.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Attaches a queue pair to a group, once.
    pub(crate) fn attach(&mut self, group: LocalAddress, qp: &Arc<Qp>) {
        let members = self.groups.entry(group).or_default();
        if !members.iter().any(|member| Arc::ptr_eq(member, qp)) {
            members.push(Arc::clone(qp));
        }
    }

    /// Detaches a queue pair from a group. False when it was not attached.
    pub(crate) fn detach(&mut self, group: LocalAddress, qp: &Qp) -> bool {
        let Some(members) = self.groups.get_mut(&group) else {
            return false;
        };
        let before = members.len();
        members.retain(|member| !std::ptr::eq(&**member, qp));
        let found = members.len() < before;
        if members.is_empty() {
            self.groups.remove(&group);
        }
        found
    }

    /// Adds the queue pair that `make` makes for a free number in `range`, one that `fits` if there
    /// is any. The number is random, so that it cannot be guessed. Returns `None` when no number is
    /// free.
    pub(crate) fn add(
        &mut self,
        range: RangeInclusive<u32>,
        fits: impl Fn(Qpn) -> bool,
        make: impl FnOnce(Qpn) -> Result<Arc<Qp>, NoMemory>,
    ) -> Result<Option<Arc<Qp>>, NoMemory> {
        self.by_number.add(range, fits, make)
    }

    /// Returns all queue pairs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Qp>> {
        self.by_number.iter()
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.by_number.remove(qpn)
    }
}
