//! The address handles of the datagrams in a send queue.

use crate::ports::route::Route;
use crate::queues::ah::AddressHandle;
use std::collections::VecDeque;
use std::sync::Arc;

/// Address handles in the order of the send queue, one for each run of datagrams with the same
/// handle.
#[derive(Debug, Default)]
pub(crate) struct QueuedHandles(VecDeque<Arc<AddressHandle>>);

impl QueuedHandles {
    /// Records that a datagram to `handle` was posted.
    pub(crate) fn posted(&mut self, handle: &Arc<AddressHandle>) {
        if self
            .0
            .back()
            .is_none_or(|last| last.number() != handle.number())
        {
            self.0.push_back(Arc::clone(handle));
        }
    }

    /// Returns the route of the next datagram, whose handle has this number. Releases the handles
    /// before it, whose datagrams have been sent.
    pub(crate) fn route_of(&mut self, number: u64) -> Option<&Route> {
        while self.0.front().is_some_and(|first| first.number() != number) {
            self.0.pop_front();
        }
        self.0.front().map(|handle| handle.route())
    }

    /// Releases all handles: the send queue is empty.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
