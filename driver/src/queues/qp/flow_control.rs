//! Flow control of unreliable connections to same-host peers: how much is sent before the receiver
//! has read it.

use crate::ports::route::Route;
use crate::scheduling::limits::{MAX_UNRELIABLE_IN_FLIGHT, MIN_PROBE_INTERVAL};
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of such connections of this process.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

/// Counts an unreliable connection to a same-host peer, until it is dropped.
#[derive(Debug)]
pub(super) struct SameHostPeer(());

impl SameHostPeer {
    /// Counts a connection whose route leads to its own address; `None` for others.
    pub(super) fn of_route(route: &Route) -> Option<Self> {
        let here = route.local.endpoint().address().ip();
        (route.path.peer().ip() == here).then(|| {
            CONNECTIONS.fetch_add(1, Ordering::Relaxed);
            SameHostPeer(())
        })
    }

    /// The probe interval in bytes. Two probes may be unanswered while the next interval is sent.
    pub(super) fn probe_interval() -> u32 {
        let share = MAX_UNRELIABLE_IN_FLIGHT / CONNECTIONS.load(Ordering::Relaxed).max(1);
        (share / 3).max(MIN_PROBE_INTERVAL)
    }
}

impl Drop for SameHostPeer {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}
