//! The end of connections: peer probes, and the final ACK flush.
//!
//! Whether a silent peer still exists is found out by a probe, at the request of the connection
//! manager (`cm::gsi::liveness`).
//!
//! At the local end, the application may see a completion before the ACK of the same packet has
//! been sent, since a batch is handled first and answered afterwards. An application that has
//! received its last message may then destroy the queue pair, or exit, and the peer would
//! retransmit to a queue pair that is gone. So the last responses are sent before the end.

use super::sending::{Blocked, TURN, Unsent, send_batch};
use super::{Inner, Qp};
use crate::engine;
use crate::event_queue::lock;
use crate::regions::{RegionTable, regions};
use crate::route::Route;
use urxe_net::now;

impl Qp {
    /// Sends the final responses before the process exits.
    pub(crate) fn take_leave(&self) {
        let held = regions();
        let unsent = self.say_farewell(&mut lock(&self.inner), held.table());
        drop(held);
        unsent.send();
    }

    /// Sends a probe to the peer. Returns false when no probe is possible.
    pub(crate) fn probe(&self) -> bool {
        let mut inner = lock(&self.inner);
        let Inner {
            machine,
            traffic,
            route,
            ..
        } = &mut *inner;
        let Some(Route { local, path }) = route else {
            return false;
        };
        let mut batch = engine::get().take_batch();
        batch.begin(path);
        let asked = machine.poll_probe(now(), &mut *batch);
        // A probe for which the socket has no room is lost like any other, and repeated later.
        if let Err(Blocked) = send_batch(&mut batch, path, local, traffic) {
            batch.discard();
        }
        engine::get().return_batch(batch);
        asked
    }

    /// Moves the queue pair to the error state because its peer is gone.
    pub(crate) fn peer_is_gone(&self) {
        let held = regions();
        let mut inner = lock(&self.inner);
        inner
            .machine
            .peer_is_gone(now(), &mut self.host(held.table()));
        self.settle(&mut inner, held.table());
    }

    /// Sends the final responses of a queue pair that handles no more packets. Returns those for
    /// which the socket has no room; the caller sends them once it holds no lock.
    pub(super) fn say_farewell(&self, inner: &mut Inner, regions: &RegionTable) -> Unsent {
        inner.follow_migration();
        let mut batch = inner.take_stalled_batch();
        let Inner {
            machine,
            traffic,
            route,
            ..
        } = inner;
        let Some(Route { local, path }) = route else {
            return Unsent::from(batch);
        };
        machine.say_farewell();
        let mut turn = TURN;
        let mut more = true;
        while more && turn > 0 {
            batch.begin(path);
            more = machine.poll_answers(now(), &mut self.host(regions), &mut *batch);
            match send_batch(&mut batch, path, local, traffic) {
                Ok(spent) => turn = turn.saturating_sub(spent),
                Err(Blocked) => break,
            }
        }
        Unsent::from(batch)
    }
}
