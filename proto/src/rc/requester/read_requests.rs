//! The record of sent requests that require a response: READ, the atomics, ATOMIC WRITE and FLUSH.

use crate::psn::Psn;
use std::collections::VecDeque;

/// The end of a request that requires a response.
///
/// A repeated READ request must ask for a part of one request that the responder has executed, or
/// of none; the responder drops one that spans two (9.7.5.1.1).
#[derive(Clone, Copy, Debug)]
struct RequestEnd {
    /// The PSN after the last response.
    psn: Psn,
    /// Whether it is the end of a repeated request for a part of an earlier one. If the earlier
    /// request was lost, the responder has executed the part alone.
    is_part: bool,
}

/// The sent requests that require a response and are not done.
#[derive(Debug, Default)]
pub(super) struct ReadRequests {
    /// The end PSNs of the requests without a response since the requester last went back.
    outstanding: VecDeque<Psn>,
    /// The ends of all requests and of their parts, in PSN order.
    ends: VecDeque<RequestEnd>,
}

impl ReadRequests {
    /// The number of outstanding requests.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Adds an outstanding request that ends at this PSN.
    pub(super) fn add_outstanding(&mut self, end: Psn) {
        self.outstanding.push_back(end);
    }

    /// Clears the outstanding requests: all of them are sent again.
    pub(super) fn go_back(&mut self) {
        self.outstanding.clear();
    }

    /// Makes the requests without a response outstanding again, none of which is sent again.
    pub(super) fn undo_go_back(&mut self) {
        let originals = self.ends.iter().filter(|end| !end.is_part);
        self.outstanding = originals.map(|end| end.psn).collect();
    }

    /// Clears everything.
    pub(super) fn clear(&mut self) {
        *self = ReadRequests::default();
    }

    /// Removes the requests that are done, given that all before `una` is.
    #[inline]
    pub(super) fn progressed(&mut self, una: Psn) {
        while self.ends.front().is_some_and(|end| !end.psn.after(una)) {
            self.ends.pop_front();
        }
        while self.outstanding.front().is_some_and(|end| !end.after(una)) {
            self.outstanding.pop_front();
        }
    }

    /// Records the end of an original request.
    pub(super) fn add_original(&mut self, psn: Psn) {
        let is_part = false;
        self.ends.push_back(RequestEnd { psn, is_part });
    }

    /// Records that a part of an earlier request was repeated by itself, and may be executed alone.
    pub(super) fn add_part(&mut self, psn: Psn) {
        let at = self.ends.partition_point(|end| end.psn.before(psn));
        if self.ends.get(at).is_none_or(|end| end.psn != psn) {
            let is_part = true;
            self.ends.insert(at, RequestEnd { psn, is_part });
        }
    }

    /// Returns the end of the original request for the response with this PSN.
    pub(super) fn original_end(&self, psn: Psn) -> Option<Psn> {
        let mut originals = self.ends.iter().filter(|end| !end.is_part);
        originals.find(|end| end.psn.after(psn)).map(|end| end.psn)
    }

    /// Returns the limit for the end of a repeated request for the response with this PSN.
    ///
    /// It is the end of the first earlier request, or part of one, that ends after `psn`.
    pub(super) fn repeated_end(&self, psn: Psn) -> Option<Psn> {
        let mut ends = self.ends.iter();
        ends.find(|end| end.psn.after(psn)).map(|end| end.psn)
    }

    /// Returns the last end before this PSN of a part that was requested by itself.
    pub(super) fn part_end_before(&self, psn: Psn) -> Option<Psn> {
        let parts = self.ends.iter().filter(|end| end.is_part);
        let mut earlier = parts.filter(|end| end.psn.before(psn));
        earlier.next_back().map(|end| end.psn)
    }

    /// Whether an original request ends at this PSN.
    pub(super) fn ends_original(&self, psn: Psn) -> bool {
        let mut originals = self.ends.iter().filter(|end| !end.is_part);
        originals.any(|end| end.psn == psn)
    }
}
