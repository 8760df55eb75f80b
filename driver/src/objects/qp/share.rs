//! Shared ownership of an XRC target queue pair (annex A14).

use crate::events::{AsyncEvents, Origin};
use crate::queues::qp::{Owner, Qp};
use crate::queues::srq::Xrcd;
use std::sync::Arc;
use urxe_proto::ids::Qpn;

/// An XRC target queue pair that was opened by its number. Its creator owns it beside this.
#[derive(Debug)]
pub struct Share {
    qp: Arc<Qp>,
    owner: Arc<Owner>,
}

impl Share {
    /// Opens the XRC target with this number; `None` if the domain has none. Its events go to
    /// `events` too.
    pub fn open(domain: &Xrcd, qpn: Qpn, events: &Arc<AsyncEvents>) -> Option<Arc<Share>> {
        let qp = domain.find_target(qpn)?;
        let owner = Owner::sharer(qpn, events);
        let is_alive = qp.owners.join(&owner);
        is_alive.then(|| Arc::new(Share { qp, owner }))
    }

    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Its identity in asynchronous events.
    pub fn origin(&self) -> &Arc<Origin> {
        self.owner.origin()
    }

    /// Closes this share, removes its events, and waits until the application has acknowledged
    /// those that it has taken. Must be called before the last reference is dropped.
    pub fn close(&self) {
        self.disown();
        self.owner.end();
    }

    /// Releases the ownership of this share, once. The last owner's release takes the queue pair
    /// off the network and removes its completions.
    pub fn disown(&self) {
        self.qp.leave_owner(&self.owner);
    }
}
