//! A thread of the program that waits in a blocking call, and receives meanwhile.

use super::{Engine, Network};
use std::os::fd::BorrowedFd;

/// While this lives, the thread counts as one that waits: the progress thread may leave the sockets to it.
/// Dropping it ends that, however the wait ends: an event, an error, a panic, the thread's cancellation.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    engine: &'a Engine,
    network: &'a Network,
}

impl Waiter<'_> {
    /// Does the work of the network, once. True when there was something.
    pub(crate) fn drive(&self) -> bool {
        self.engine.drive()
    }

    /// [`Waiter::sockets`] is not a valid descriptor any more.
    pub(crate) fn lost_sockets(&self) {
        self.engine.lost_descriptors();
    }

    /// Readable when a packet has come.
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
    /// The calling thread waits from now on. `None` while there is no network to receive from.
    pub(crate) fn wait(&self) -> Option<Waiter<'_>> {
        let network = self.network.get()?;
        self.handover.enter();
        Some(Waiter {
            engine: self,
            network,
        })
    }
}
