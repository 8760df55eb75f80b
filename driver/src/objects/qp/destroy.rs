//! The end of queue pairs.

use crate::lock_order::{Ordered, Rank};
use crate::memory::regions::regions;
use crate::path;
use crate::queues::qp::{Owner, Qp};
use crate::sync::lock;
use std::sync::Arc;

impl Qp {
    /// Releases the creator's ownership, removes the queue pair's events, and waits until the
    /// application has acknowledged those that it has taken. Must be called before the last
    /// reference is dropped.
    pub fn destroy(self: &Arc<Self>) {
        self.disown();
        self.creator.end();
    }

    /// Releases the creator's ownership, once. The last owner's release takes the queue pair off
    /// the network and removes its completions.
    pub fn disown(self: &Arc<Self>) {
        self.leave_owner(&self.creator);
    }

    /// Releases one ownership.
    pub(super) fn leave_owner(self: &Arc<Self>, owner: &Arc<Owner>) {
        // Events are delivered to the owners under this lock.
        let inner = self.lock();
        let is_last = self.owners.leave(owner);
        drop(inner);
        if is_last {
            self.end();
        }
    }

    /// Takes the queue pair off the network, and removes its completions.
    fn end(self: &Arc<Self>) {
        let engine = path::get();
        engine.flush_deferred();
        // A NIC has acknowledged a request long before a later destruction. Without this, the peer
        // would repeat a request that waits in the socket until its retries are exhausted.
        engine.receive_arrived();
        let held = regions();
        let mut inner = self.lock();
        // Another thread may have taken the queue pair off the list of deferred sends, and would
        // send after the removal.
        if !inner.coalescing.is_empty() {
            self.transmit(&mut inner, urxe_net::now(), held.table());
        }
        let unsent = self.flush_final_acks(&mut inner, held.table());
        // Without a route the queue pair executes no work request and binds no memory window.
        inner.set_peer_path(None);
        inner.alternate = None;
        inner.handles.clear();
        let effects = inner.take_effects();
        drop(inner);
        held.table().free_windows_of(self.qpn);
        drop(held);
        engine.apply(self, effects);
        engine.wake_if_grantable();
        unsent.send();
        self.leave_groups();
        if self.frames.is_some() {
            engine.remove_raw(self);
        }
        let mut past = Ordered::take(Rank::PastCounters, || lock(&self.counters.past));
        engine.remove_qp(self.qpn);
        *past += &self.totals();
        drop(past);
        engine.wait_for_delayed_packets();
        for cq in self.cqs() {
            cq.purge(self.qpn);
        }
    }
}
