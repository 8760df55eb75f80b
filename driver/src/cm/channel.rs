//! Events of the connection manager, and the channels that they arrive at.

use super::id::Id;
use crate::event_queue::EventQueue;
use std::sync::Arc;

/// What happened; the numbers of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// The device for the destination is known.
    AddressResolved = 0,
    /// There is none.
    AddressError = 1,
    /// The path is known.
    RouteResolved = 2,
    /// What a name stands for is known.
    AddressInfoResolved = 16,
    /// A program put it there, with a number of its own.
    User = 18,
}

/// What an event says beside its kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Details {
    /// Nothing.
    #[default]
    None,
    /// A program's number.
    User(u64),
}

/// Something that happened to an identifier.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which.
    pub id: Arc<Id>,
    /// What.
    pub kind: EventKind,
    /// 0, or a negative errno, or the reason that a peer gave.
    pub status: i32,
    /// What else there is to say.
    pub details: Details,
}

impl Event {
    /// Whose event it is: who waits with its end until it was acknowledged.
    pub fn owner(&self) -> &Arc<Id> {
        &self.id
    }
}

/// Where the events of any number of identifiers arrive.
pub type EventChannel = EventQueue<Event>;
