//! A thread of the program in a blocking call, which receives meanwhile.

use super::{Engine, Network};
use std::os::fd::BorrowedFd;

/// A thread in a blocking call. While this exists, the progress thread may leave the sockets to it.
///
/// Dropping it ends that, in whichever way the wait ends: an event, an error, a panic, or the
/// thread's cancellation.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    engine: &'a Engine,
    network: &'a Network,
}

impl Waiter<'_> {
    /// Does the work of the network once. True when there was any.
    pub(crate) fn drive(&self) -> bool {
        self.engine.drive()
    }

    /// Reports that [`Waiter::sockets`] is not a valid descriptor any more.
    pub(crate) fn lost_sockets(&self) {
        self.engine.lost_descriptors();
    }

    /// Returns a descriptor that is readable when a packet has arrived.
    pub(crate) fn sockets(&self) -> BorrowedFd<'_> {
        self.network.progress.sockets()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.engine.handover.leave() {
            self.engine.wake();
        }
    }
}

impl Engine {
    /// Begins a wait of the calling thread. `None` while there is no network part to receive from.
    pub(crate) fn wait(&self) -> Option<Waiter<'_>> {
        let network = self.network.get()?;
        self.handover.enter();
        Some(Waiter {
            engine: self,
            network,
        })
    }
}
