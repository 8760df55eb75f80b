//! The ends of connections.
//!
//! Whether a silent peer is still there is found out by asking it, when the connection manager wants to know
//! (`cm::gsi::liveness`). How the peer sees our own end:
//! a completion may be seen by the program before the acknowledgement of the same packet has gone out:
//! a batch is handled first, and answered then. A program that has what it waited for may end its
//! queue pair, or itself, in between, and the peer would ask a queue pair that is gone.

use super::sending::{Blocked, TURN, Unsent, send_batch};
use super::{Inner, Qp};
use crate::engine;
use crate::event_queue::lock;
use crate::regions::{RegionTable, regions};
use crate::route::Route;
use urxe_net::now;

impl Qp {
    /// The process is about to end: sends what its peer is owed.
    pub(crate) fn take_leave(&self) {
        let held = regions();
        let unsent = self.say_farewell(&mut lock(&self.inner), held.table());
        drop(held);
        unsent.send();
    }

    /// Asks the peer for a sign of life. False when there is nothing to ask.
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
        let asked = machine.poll_probe(now(), &mut batch);
        // A probe for which there is no room is lost like any other, and asked again.
        if let Err(Blocked) = send_batch(&mut batch, path, local, traffic) {
            batch.discard();
        }
        engine::get().return_batch(batch);
        asked
    }

    /// Its peer is gone: it goes to error.
    pub(crate) fn peer_is_gone(&self) {
        let held = regions();
        let mut inner = lock(&self.inner);
        inner
            .machine
            .peer_is_gone(now(), &mut self.host(held.table()));
        self.settle(&mut inner, held.table());
    }

    /// It will handle no packets any more: sends the answers that its peer is owed. Those that the
    /// socket has no room for are for the caller to send once it holds no lock.
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
            more = machine.poll_answers(now(), &mut self.host(regions), &mut batch);
            match send_batch(&mut batch, path, local, traffic) {
                Ok(spent) => turn = turn.saturating_sub(spent),
                Err(Blocked) => break,
            }
        }
        Unsent::from(batch)
    }
}
