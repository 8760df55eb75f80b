//! Queue pairs by number.

use crate::qp::Qp;
use std::ops::RangeInclusive;
use std::sync::Arc;
use urxe_proto::ids::Qpn;

/// The queue pairs of the process: a number finds its queue pair at once, however many there are.
#[derive(Debug, Default)]
pub(super) struct QpTable {
    /// By the low bits of the number, those that are the process's own.
    slots: Vec<Option<Arc<Qp>>>,
    first: u32,
    count: usize,
}

impl QpTable {
    pub(super) fn get(&self, qpn: Qpn) -> Option<&Arc<Qp>> {
        self.slots
            .get(qpn.get().checked_sub(self.first)? as usize)?
            .as_ref()
    }

    /// Adds what `make` makes of a free number in `range`, chosen at random so that nobody can
    /// guess it. `None` when all are taken.
    pub(super) fn add(
        &mut self,
        range: RangeInclusive<u32>,
        make: impl FnOnce(Qpn) -> Arc<Qp>,
    ) -> Option<Arc<Qp>> {
        let size = range.clone().count();
        self.first = *range.start();
        if self.slots.is_empty() {
            self.slots.resize(size, None);
        }
        if self.count == size {
            return None;
        }
        let start = crate::random::below(size);
        let free = (start..size)
            .chain(0..start)
            .find(|at| self.slots[*at].is_none())?;
        let qp = make(Qpn::new(self.first + free as u32));
        self.slots[free] = Some(Arc::clone(&qp));
        self.count += 1;
        Some(qp)
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
