//! Reliable connections to processes of this host, which take turns ([`Passage`]).

use super::Qp;
use super::machine::Machine;
use crate::engine::{self, GRANT, Passage};
use crate::route::Route;
use std::sync::Arc;

/// A connection that takes a passage.
#[derive(Debug)]
pub(super) struct Passenger {
    passage: Arc<Passage>,
    /// What the passage knows to be under way.
    counted: u32,
    /// Its peer was waited for in vain: nobody knows that anything of it is under way.
    is_unheard: bool,
    /// It is on the list of those that wait.
    waits: bool,
}

impl Passenger {
    /// One, if `machine` is a reliable connection's and the way leads to this very address.
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

    /// Tells the passage what is under way.
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

    /// The peer was waited for in vain, or not.
    pub(super) fn set_unheard(&mut self, is_unheard: bool) {
        self.is_unheard = is_unheard;
    }

    /// Its turn has come.
    pub(super) fn called(&mut self, machine: &mut Machine) {
        self.waits = false;
        machine.grant(GRANT);
    }

    /// Wants to send more than it was granted: whether it may, at once. Otherwise `qp` will be called.
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
