//! The effects of a call on a queue pair.

use std::sync::Arc;
use urxe_net::{Path, TxSocket};
use urxe_proto::mtu::Mtu;
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
    /// A timeout whose cause may be the MTU of the path.
    pub(crate) timed_out: Option<Box<PathTimeout>>,
}

/// A timeout of a long packet to a peer, or from it.
#[derive(Debug)]
pub(crate) struct PathTimeout {
    pub(crate) path: Path,
    /// The path MTU of the queue pair.
    pub(crate) mtu: Mtu,
    /// Whether the connection has failed although the peer has answered short packets.
    pub(crate) only_short_packets_arrive: bool,
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
            timed_out: None,
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
            && self.timed_out.is_none()
    }
}
