//! The owners of a queue pair: its creator, and those that opened an XRC target (annex A14). Its
//! events go to all of them, and it lives until the last one leaves.

use crate::events::{AsyncEvents, EventObject, EventSender, EventType, Origin};
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use urxe_proto::ids::Qpn;

/// An owner, as the receiver of the queue pair's events.
#[derive(Debug)]
pub(crate) struct Owner {
    /// Whether it opened the queue pair, and did not create it.
    is_share: bool,
    events: EventSender,
    origin: Arc<Origin>,
}

impl Owner {
    /// Creates the owner that creates the queue pair.
    pub(crate) fn creator(qpn: Qpn, events: &Arc<AsyncEvents>) -> Arc<Self> {
        Self::new(qpn, events, false)
    }

    /// Creates an owner that opens the queue pair.
    pub(crate) fn sharer(qpn: Qpn, events: &Arc<AsyncEvents>) -> Arc<Self> {
        Self::new(qpn, events, true)
    }

    fn new(qpn: Qpn, events: &Arc<AsyncEvents>, is_share: bool) -> Arc<Self> {
        Arc::new(Owner {
            is_share,
            events: EventSender::new(events),
            origin: Origin::of_qp(qpn),
        })
    }

    /// Returns the identity of the queue pair in the events of this owner.
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Removes its events, and waits until the application has acknowledged those that it has
    /// taken.
    pub(crate) fn end(&self) {
        self.events.end(&self.origin);
    }

    fn push(&self, kind: EventType) {
        let origin = Arc::clone(&self.origin);
        let object = match self.is_share {
            true => EventObject::Share(origin),
            false => EventObject::Qp(origin),
        };
        self.events.send(kind, object);
    }
}

/// The owners of a queue pair.
#[derive(Debug)]
pub(crate) struct Owners(Mutex<Vec<Arc<Owner>>>);

impl Owners {
    /// Returns a list with the creator as the only owner.
    pub(crate) fn new(creator: &Arc<Owner>) -> Self {
        Owners(Mutex::new(vec![Arc::clone(creator)]))
    }

    /// Delivers an event to all owners, those that opened the queue pair first.
    pub(crate) fn push_event(&self, kind: EventType) {
        let owners = lock(&self.0).clone();
        owners.iter().rev().for_each(|owner| owner.push(kind));
    }

    /// Adds an owner. Returns false if the last owner has left already.
    pub(crate) fn join(&self, owner: &Arc<Owner>) -> bool {
        let mut owners = lock(&self.0);
        let alive = !owners.is_empty();
        if alive {
            owners.push(Arc::clone(owner));
        }
        alive
    }

    /// Removes an owner. Returns true if it was the last one.
    pub(crate) fn leave(&self, owner: &Arc<Owner>) -> bool {
        let mut owners = lock(&self.0);
        let is_alive = !owners.is_empty();
        owners.retain(|other| !Arc::ptr_eq(other, owner));
        is_alive && owners.is_empty()
    }
}
