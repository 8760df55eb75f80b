//! Who wants to look at the clock, and when.

use super::CommId;
use crate::time::Time;
use std::collections::{BTreeSet, HashMap};

/// One deadline an identifier.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    order: BTreeSet<(Time, CommId)>,
    of: HashMap<CommId, Time>,
}

impl Deadlines {
    /// `id` wants to look at the clock at `when`, and at no other time; never, if that is
    /// [`Time::NEVER`].
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

    /// The earliest.
    pub fn first(&self) -> Time {
        self.order.first().map_or(Time::NEVER, |(when, _)| *when)
    }

    /// Takes away the earliest, if it is not after `now`.
    pub fn pop(&mut self, now: Time) -> Option<CommId> {
        let &(when, id) = self.order.first()?;
        if when > now {
            return None;
        }
        self.set(id, Time::NEVER);
        Some(id)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.of.is_empty()
    }
}
