//! Queue pairs by number, and by the multicast groups that they are attached to.

use crate::qp::{CreateError, Qp};
use crate::tables::ByNumber;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use urxe_net::LocalAddress;
use urxe_proto::ids::Qpn;
use urxe_proto::queue::NoMemory;

/// The queue pairs of the process.
#[derive(Debug, Default)]
pub(super) struct QpTable {
    by_number: ByNumber<Qp>,
    /// The queue pairs that are attached to each multicast group.
    groups: HashMap<LocalAddress, Vec<Arc<Qp>>>,
}

impl QpTable {
    pub(super) fn get(&self, qpn: Qpn) -> Option<&Arc<Qp>> {
        self.by_number.get(qpn)
    }

    /// Returns the queue pairs that are attached to a multicast group.
    pub(super) fn members(&self, group: LocalAddress) -> &[Arc<Qp>] {
        self.groups.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Attaches a queue pair to a group, once.
    pub(super) fn attach(&mut self, group: LocalAddress, qp: &Arc<Qp>) {
        let members = self.groups.entry(group).or_default();
        if !members.iter().any(|member| Arc::ptr_eq(member, qp)) {
            members.push(Arc::clone(qp));
        }
    }

    /// Detaches a queue pair from a group. False when it was not attached.
    pub(super) fn detach(&mut self, group: LocalAddress, qp: &Qp) -> bool {
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

    /// Adds the queue pair that `make` makes for a free number in `range`. The number is random, so
    /// that it cannot be guessed.
    pub(super) fn add(
        &mut self,
        range: RangeInclusive<u32>,
        make: impl FnOnce(Qpn) -> Result<Arc<Qp>, NoMemory>,
    ) -> Result<Arc<Qp>, CreateError> {
        self.by_number
            .add(range, make)?
            .ok_or(CreateError::NoNumber)
    }

    /// Returns all queue pairs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Qp>> {
        self.by_number.iter()
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.by_number.remove(qpn)
    }
}
