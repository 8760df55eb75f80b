//! Flow control of unreliable connections to same-host peers: how much is sent before the receiver
//! has read it.

use crate::route::Route;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most bytes in flight of all such connections of the process: what fits a receive buffer of the
/// default `rmem_max`, with room for other traffic.
const UNDER_WAY: u32 = 192 * 1024;

/// Shortest probe interval in bytes: a few packets, however many connections there are.
const LEAST: u32 = 8 * 1024;

/// The number of such connections of this process.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

/// Counts an unreliable connection to a same-host peer, until it is dropped.
#[derive(Debug)]
pub(super) struct Neighbour(());

impl Neighbour {
    /// Counts a connection whose route leads to its own address; `None` for others.
    pub(super) fn at_the_end_of(route: &Route) -> Option<Self> {
        let here = route.local.endpoint().address().ip();
        (route.path.peer().ip() == here).then(|| {
            CONNECTIONS.fetch_add(1, Ordering::Relaxed);
            Neighbour(())
        })
    }

    /// The probe interval in bytes. Two probes may be unanswered while the next interval is sent.
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
