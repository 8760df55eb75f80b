//! Reliable connections to processes of this host, whose bytes in flight a [`Passage`] limits.

use super::Qp;
use super::machine::Machine;
use crate::engine::{self, GRANT, Passage};
use crate::route::Route;
use std::sync::Arc;

/// The share of one connection in the limiter of its destination.
#[derive(Debug)]
pub(super) struct Passenger {
    passage: Arc<Passage>,
    /// Bytes in flight that the limiter counts for this connection.
    counted: u32,
    /// A transport timer has expired and no packet has been accepted since. The packets sent may be
    /// lost, so they count as 0 bytes in flight.
    is_unheard: bool,
    /// The connection is in the limiter's FIFO.
    waits: bool,
}

impl Passenger {
    /// Returns the share of a reliable connection whose route leads to its own address; `None` for
    /// others.
    pub(super) fn on(route: &Route, machine: &Machine) -> Option<Self> {
        let endpoint = route.local.endpoint();
        if !matches!(machine, Machine::Rc(_)) || route.path.peer().ip() != endpoint.address().ip() {
            return None;
        }
        let slot = machine.attributes().dest_qpn.get().to_be_bytes()[1];
        Some(Passenger {
            passage: engine::get().passage(slot, endpoint.receive_buffer()),
            counted: 0,
            is_unheard: false,
            waits: false,
        })
    }

    /// Reports the connection's bytes in flight to the limiter.
    pub(super) fn count(&mut self, machine: &Machine) {
        let under_way = match self.is_unheard {
            true => 0,
            false => machine.under_way(),
        };
        if under_way != self.counted {
            self.passage.changed(self.counted, under_way);
            self.counted = under_way;
        }
    }

    /// Sets whether a transport timer has expired with no packet accepted since.
    pub(super) fn set_unheard(&mut self, is_unheard: bool) {
        self.is_unheard = is_unheard;
    }

    /// Grants a quantum: the connection has reached the head of the FIFO.
    pub(super) fn called(&mut self, machine: &mut Machine) {
        self.waits = false;
        machine.grant(GRANT);
    }

    /// Requests a quantum for a connection that has used its last. Returns true if it is granted at
    /// once. Otherwise `qp` joins the FIFO and is resumed later.
    pub(super) fn ask(&mut self, qp: &Arc<Qp>, machine: &mut Machine) -> bool {
        self.count(machine);
        if self.waits {
            return false;
        }
        if self.passage.is_free() {
            machine.grant(GRANT);
            return true;
        }
        self.waits = true;
        engine::get().wait_for_passage(&self.passage, Arc::clone(qp));
        false
    }
}

impl Drop for Passenger {
    fn drop(&mut self) {
        self.passage.changed(self.counted, 0);
        engine::get().passage_cleared();
    }
}
