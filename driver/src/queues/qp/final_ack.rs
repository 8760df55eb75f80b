//! The final ACK flush.
//!
//! The application may see a completion before the ACK of the same packet has been sent, since a
//! batch is handled first and answered afterwards. An application that has received its last
//! message may then destroy the queue pair, or exit, and the peer would retransmit to a queue pair
//! that no longer exists. So the last responses are sent before the end.

use super::pair::{Inner, Qp};
use super::tx::{Blocked, UnsentBatch, send_batch};
use crate::memory::regions::{RegionTable, regions};
use crate::ports::route::Route;
use crate::scheduling::limits::TX_BUDGET;
use urxe_net::now;

impl Qp {
    /// Sends the final responses before the process exits.
    pub(crate) fn send_final_acks(&self) {
        let held = regions();
        let unsent = self.flush_final_acks(&mut self.lock(), held.table());
        drop(held);
        unsent.send();
    }

    /// Sends the final responses of a queue pair that handles no more packets. Returns those for
    /// which the socket has no room; the caller sends them once it holds no lock.
    pub(crate) fn flush_final_acks(&self, inner: &mut Inner, regions: &RegionTable) -> UnsentBatch {
        inner.follow_migration();
        let mut batch = inner.take_stalled_batch(&self.batches);
        let Inner {
            transport,
            traffic,
            route,
            effects,
            ..
        } = inner;
        let Some(Route { local, path }) = route else {
            return UnsentBatch::new(batch, &self.batches);
        };
        transport.schedule_final_acks();
        let mut budget = TX_BUDGET;
        let mut more = true;
        while more && budget > 0 {
            batch.begin(path);
            more = transport.poll_responses(now(), &mut self.host(regions), &mut *batch);
            match send_batch(&mut batch, path, local, (&mut *traffic, &mut *effects)) {
                Ok(spent) => budget = budget.saturating_sub(spent),
                Err(Blocked) => break,
            }
        }
        UnsentBatch::new(batch, &self.batches)
    }
}
