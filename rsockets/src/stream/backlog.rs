//! The backlog of a listening socket: the connections that the program has not accepted, and the
//! requests that wait until it accepts some.

use std::collections::VecDeque;
use std::sync::Arc;
use urxe_driver::cm::Id;
use urxe_driver::cm::channel::ConnectionDetails;
use urxe_driver::cm::connection::MAX_BACKLOG;

/// A connection request: its identifier and its parameters.
pub(super) type Request = (Arc<Id>, ConnectionDetails);

/// The connections that a listening socket establishes before the program accepts them.
///
/// The connection manager limits the pending requests: they occupy its own backlog.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    limit: usize,
    /// The connections that are being established or that the program has not accepted.
    unaccepted: usize,
    /// The requests beyond the limit, in the order of arrival.
    pending: VecDeque<Request>,
}

impl Backlog {
    /// Sets the limit by the argument of listen(2): one more than `backlog`, as for TCP.
    pub fn set_limit(&mut self, backlog: i32) {
        // Linux takes a negative value as a large one.
        let backlog = usize::try_from(backlog).unwrap_or(MAX_BACKLOG);
        self.limit = backlog.min(MAX_BACKLOG) + 1;
    }

    /// Adds a request.
    pub fn add(&mut self, request: Request) {
        self.pending.push_back(request);
    }

    /// Returns the next request to answer, if there is room. The caller calls [`Backlog::leave`]
    /// when the program accepts the connection, or it fails.
    pub fn admit(&mut self) -> Option<Request> {
        if self.unaccepted >= self.limit {
            return None;
        }
        let next = self.pending.pop_front()?;
        self.unaccepted += 1;
        Some(next)
    }

    /// Releases the place of an admitted request.
    pub fn leave(&mut self) {
        self.unaccepted -= 1;
    }

    /// Removes a request that its peer has withdrawn.
    pub fn withdraw(&mut self, id: &Arc<Id>) {
        self.pending.retain(|(other, _)| !Arc::ptr_eq(other, id));
    }

    /// Removes and returns all pending requests.
    pub fn take_pending(&mut self) -> VecDeque<Request> {
        std::mem::take(&mut self.pending)
    }
}
