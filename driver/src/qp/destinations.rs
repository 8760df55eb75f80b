//! The address handles of datagrams that wait to be sent.

use crate::ah::AddressHandle;
use crate::route::Route;
use std::collections::VecDeque;
use std::sync::Arc;

/// The handles in the order in which the queue needs them, one for each run of datagrams to the same.
#[derive(Debug, Default)]
pub(super) struct Destinations(VecDeque<Arc<AddressHandle>>);

impl Destinations {
    /// A datagram to `handle` was posted.
    pub(super) fn posted(&mut self, handle: &Arc<AddressHandle>) {
        if self
            .0
            .back()
            .is_none_or(|last| last.number() != handle.number())
        {
            self.0.push_back(Arc::clone(handle));
        }
    }

    /// The way of the next datagram, which goes to the handle with this number. Those before have
    /// been sent, and their handles are done.
    pub(super) fn way_to(&mut self, number: u64) -> Option<&Route> {
        while self.0.front().is_some_and(|first| first.number() != number) {
            self.0.pop_front();
        }
        self.0.front().map(|handle| handle.route())
    }

    /// Nothing is to be sent any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
