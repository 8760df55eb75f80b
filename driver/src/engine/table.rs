//! Queue pairs by number.

use crate::net::LocalAddress;
use crate::qp::{CreateError, Qp};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use urxe_proto::ids::Qpn;
use urxe_proto::queue::NoMemory;

/// The queue pairs of the process: a number finds its queue pair at once, however many there are.
#[derive(Debug, Default)]
pub(super) struct QpTable {
    /// By the low bits of the number, those that are the process's own.
    slots: Vec<Option<Arc<Qp>>>,
    first: u32,
    count: usize,
    /// Who is attached to each multicast group.
    groups: HashMap<LocalAddress, Vec<Arc<Qp>>>,
}

impl QpTable {
    pub(super) fn get(&self, qpn: Qpn) -> Option<&Arc<Qp>> {
        self.slots
            .get(qpn.get().checked_sub(self.first)? as usize)?
            .as_ref()
    }

    /// Those attached to a multicast group.
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

    /// Detaches it. False when it was not attached.
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

    /// Adds what `make` makes of a free number in `range`, chosen at random so that nobody can
    /// guess it.
    pub(super) fn add(
        &mut self,
        range: RangeInclusive<u32>,
        make: impl FnOnce(Qpn) -> Result<Arc<Qp>, NoMemory>,
    ) -> Result<Arc<Qp>, CreateError> {
        let size = range.clone().count();
        self.first = *range.start();
        if self.slots.is_empty() {
            self.slots.resize(size, None);
        }
        if self.count == size {
            return Err(CreateError::NoNumber);
        }
        let start = crate::random::below(size);
        let free = (start..size)
            .chain(0..start)
            .find(|at| self.slots[*at].is_none())
            .ok_or(CreateError::NoNumber)?;
        let qp = make(Qpn::new(self.first + free as u32))?;
        self.slots[free] = Some(Arc::clone(&qp));
        self.count += 1;
        Ok(qp)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Qp>> {
        self.slots.iter().flatten()
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Arc<Qp>> {
        let at = qpn.get().checked_sub(self.first)? as usize;
        let removed = self.slots.get_mut(at)?.take();
        if removed.is_some() {
            self.count -= 1;
        }
        removed
    }
}
