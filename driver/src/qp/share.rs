//! Shared ownership of an XRC target queue pair (annex A14). Its events go to all owners, and it
//! lives until the last one closes it.

use super::Qp;
use crate::event_queue::AckCount;
use crate::events::{AsyncEvent, AsyncEvents, EventObject, EventType};
use crate::xrcd::Xrcd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use urxe_proto::ids::Qpn;

/// An XRC target queue pair that was opened by its number. Its creator owns it beside this.
#[derive(Debug)]
pub struct Share {
    qp: Arc<Qp>,
    events: Arc<AsyncEvents>,
    /// Asynchronous events that the application has not acknowledged.
    pub async_acks: AckCount,
    /// An opaque value that the opener sets, to find its own object.
    pub tag: AtomicUsize,
}

impl Share {
    /// Opens the XRC target with this number; `None` if the domain has none. Its events go to
    /// `events` too.
    pub fn open(domain: &Xrcd, qpn: Qpn, events: &Arc<AsyncEvents>) -> Option<Arc<Share>> {
        let qp = domain.find_target(qpn)?;
        let share = Arc::new(Share {
            qp: Arc::clone(&qp),
            events: Arc::clone(events),
            async_acks: AckCount::default(),
            tag: AtomicUsize::new(0),
        });
        qp.holders.join(&share).then_some(share)
    }

    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    pub(super) fn tell(self: &Arc<Self>, kind: EventType) {
        self.events.push(AsyncEvent {
            kind,
            object: EventObject::Share(Arc::clone(self)),
        });
    }

    /// Closes this share. The last owner destroys the queue pair. Waits until the application has
    /// acknowledged the events that it has taken. Must be called before the last reference is
    /// dropped.
    pub fn close(&self) {
        self.qp.left_by(|holders| holders.leave(self));
        self.events.retract_share(self);
        self.async_acks.wait();
    }

    /// The value that the opener has set, see [`Share::tag`].
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }
}
