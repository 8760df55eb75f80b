//! The target of an extended reliable connection, as each who opens it has it (annex A14): one queue
//! pair, whose events go to all, and which lives until the last of them closes it.

use super::Qp;
use crate::event_queue::AckCount;
use crate::events::{AsyncEvent, AsyncEvents, EventObject, EventType};
use crate::xrcd::Xrcd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use urxe_proto::ids::Qpn;

/// A target queue pair that was opened by its number, beside whoever made it.
#[derive(Debug)]
pub struct Share {
    qp: Arc<Qp>,
    events: Arc<AsyncEvents>,
    /// Asynchronous events that the program has not acknowledged.
    pub async_acks: AckCount,
    /// A number for whoever opened it, to find its own object by.
    pub tag: AtomicUsize,
}

impl Share {
    /// Opens the target of this number, if the domain has one. Its events go to `events` too.
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

    /// Closes it, and destroys the queue pair if nobody else has it. Waits until the program is done
    /// with the events that it has. To be called before the last reference goes.
    pub fn close(&self) {
        self.qp.left_by(|holders| holders.leave(self));
        self.events.retract_share(self);
        self.async_acks.wait();
    }

    /// The number that whoever opened it has set, see [`Share::tag`].
    pub fn tag(&self) -> usize {
        self.tag.load(Ordering::Acquire)
    }
}
