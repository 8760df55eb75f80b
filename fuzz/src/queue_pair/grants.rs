//! What a connection may send that has to ask for its turn.

use super::scene::{Machine, Scene};
use urxe_proto::psn::Psn;

/// What a connection may send that it has not sent before.
#[derive(Clone, Copy, Default)]
pub(super) struct Grants {
    /// In packets; `None` if it needs no grants.
    pub(super) left: Option<u32>,
    /// One past the newest packet.
    pub(super) sent_end: Psn,
}

impl Scene {
    pub(super) fn require_grants(&mut self) {
        if let Machine::Rc(qp) = &mut self.machine {
            qp.require_grants(true);
            self.grants.left = Some(0);
        }
    }

    /// Has no effect on what needs no grants.
    pub(super) fn grant(&mut self, bytes: u32) {
        if let Machine::Rc(qp) = &mut self.machine {
            qp.grant(bytes);
            let packets = bytes / self.mtu as u32;
            self.grants.left = self.grants.left.map(|left| left.max(packets));
        }
    }

    /// No more has gone out for the first time than was granted.
    pub(super) fn spend_grants(&mut self) {
        let attr = self.attributes();
        if !attr.state.initiates() {
            return;
        }
        let new = attr.sq_psn.diff(self.grants.sent_end);
        if new > 0 {
            self.grants.sent_end = attr.sq_psn;
        }
        if let Some(left) = &mut self.grants.left {
            let new = new.max(0) as u32;
            assert!(new <= *left, "{new} packets with a grant for {left}");
            *left -= new;
        }
    }
}
