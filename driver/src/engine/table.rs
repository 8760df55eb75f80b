//! Queue pairs by number.

use crate::qp::{CreateError, Qp};
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
    /// guess it.
    pub(super) fn add(
        &mut self,
        range: RangeInclusive<u32>,
        make: impl FnOnce(Qpn) -> Result<Arc<Qp>, CreateError>,
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
