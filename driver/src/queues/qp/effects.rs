//! The effects of a call on a queue pair.

use std::sync::Arc;
use urxe_net::TxSocket;
use urxe_proto::time::Time;

/// The effects of a call on a queue pair, which the calling thread applies after it has released
/// the queue pair's lock ([`crate::path`]).
#[derive(Debug)]
#[must_use]
pub(crate) struct Effects {
    /// A timer is armed for this time; [`Time::NEVER`] for none.
    pub(crate) deadline: Time,
    /// `URXE_FAULTS` delays packets until this time; [`Time::NEVER`] if it delays none.
    pub(crate) delayed_until: Time,
    /// Whether the queue pair joins the list of those that have more to send than one budget.
    pub(crate) ready: bool,
    /// Whether the queue pair joins the list of those with a delayed ACK.
    pub(crate) delayed_ack: bool,
    /// The queue pair waits until this socket is writable.
    pub(crate) blocked_on: Option<Arc<TxSocket>>,
    /// The number of deferred sends that were sent.
    pub(crate) coalesced: u32,
    /// The number of ACKs that were delayed.
    pub(crate) acks_delayed: u32,
}

impl Default for Effects {
    fn default() -> Self {
        Effects {
            deadline: Time::NEVER,
            delayed_until: Time::NEVER,
            ready: false,
            delayed_ack: false,
            blocked_on: None,
            coalesced: 0,
            acks_delayed: 0,
        }
    }
}

impl Effects {
    /// Returns whether [`crate::path::Engine::apply`] has nothing to do.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.deadline == Time::NEVER
            && self.delayed_until == Time::NEVER
            && !self.ready
            && self.blocked_on.is_none()
            && self.coalesced == 0
            && self.acks_delayed == 0
    }
}
