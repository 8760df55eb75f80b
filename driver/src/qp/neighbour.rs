//! Unreliable connections to processes of this host: what they may send before the receiver has read it.

use crate::route::Route;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes that all of a process's unreliable connections within a host may have under way: what fits a receive buffer
/// of the usual `rmem_max`, with room for others.
const UNDER_WAY: u32 = 192 * 1024;

/// Between two marks there are at least a few packets, however many connections there are.
const LEAST: u32 = 8 * 1024;

/// How many such connections this process has.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

/// An unreliable connection within this host, counted while it is one.
#[derive(Debug)]
pub(super) struct Neighbour(());

impl Neighbour {
    /// One, if the way leads to this very address.
    pub(super) fn at_the_end_of(route: &Route) -> Option<Self> {
        let here = route.local.endpoint().address().ip();
        (route.path.peer().ip() == here).then(|| {
            CONNECTIONS.fetch_add(1, Ordering::Relaxed);
            Neighbour(())
        })
    }

    /// How many bytes it sends between two marks, of which two may be unanswered while the next stretch goes out.
    pub(super) fn mark_every() -> u32 {
        let share = UNDER_WAY / CONNECTIONS.load(Ordering::Relaxed).max(1);
        (share / 3).max(LEAST)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}
