//! End-to-end credits: how many messages that consume a receive the peer has room for (9.7.7.2).

use crate::queue::SendWqe;

/// The credits that the peer has advertised.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceiveCredits {
    /// The limit of sent messages that consume a receive; `None` for no limit.
    limit: Option<u32>,
    /// The number of acknowledged messages that consume a receive.
    completed: u32,
}

impl ReceiveCredits {
    /// Whether the peer has not advertised a receive for this message.
    #[inline]
    pub(super) fn lacks(&self, wqe: &SendWqe) -> bool {
        let over = |limit: u32| (wqe.receives.wrapping_sub(limit) as i32) > 0;
        wqe.op.consumes_receive() && self.limit.is_some_and(over)
    }

    /// Records that this work request is acknowledged.
    #[inline]
    pub(super) fn complete(&mut self, wqe: &SendWqe) {
        if wqe.op.consumes_receive() {
            self.completed = wqe.receives;
        }
    }

    /// Sets the credits to `count`; `None` for no limit.
    ///
    /// `has_partial` is whether the next message has already consumed its receive: one of its
    /// packets is acknowledged.
    pub(super) fn update(&mut self, count: Option<u32>, has_partial: bool) {
        let consumed = self.completed.wrapping_add(u32::from(has_partial));
        self.limit = count.map(|count| consumed.wrapping_add(count));
    }
}
