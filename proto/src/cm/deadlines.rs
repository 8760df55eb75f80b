//! A queue of deadlines, one for each identifier.

use super::CommId;
use crate::time::Time;
use std::collections::{BTreeSet, HashMap};

/// Deadlines ordered by time, with at most one for each identifier.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    order: BTreeSet<(Time, CommId)>,
    of: HashMap<CommId, Time>,
}

impl Deadlines {
    /// Sets the deadline of `id`; [`Time::NEVER`] removes it.
    pub fn set(&mut self, id: CommId, when: Time) {
        let before = if when == Time::NEVER {
            self.of.remove(&id)
        } else {
            self.of.insert(id, when)
        };
        if let Some(before) = before {
            self.order.remove(&(before, id));
        }
        if when != Time::NEVER {
            self.order.insert((when, id));
        }
    }

    /// The earliest deadline.
    pub fn first(&self) -> Time {
        self.order.first().map_or(Time::NEVER, |(when, _)| *when)
    }

    /// Removes and returns the identifier with the earliest deadline, if that is not after `now`.
    pub fn pop(&mut self, now: Time) -> Option<CommId> {
        let &(when, id) = self.order.first()?;
        if when > now {
            return None;
        }
        self.set(id, Time::NEVER);
        Some(id)
    }

    /// Whether there are no deadlines.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.of.is_empty()
    }
}
