//! Send quanta: the limit of new packets for a connection that must request them.

use super::harness::{AnyQp, Harness};
use urxe_proto::psn::Psn;

/// The new packets that a connection may send.
#[derive(Clone, Copy, Default)]
pub(super) struct SendQuantum {
    /// In packets; `None` for no limit.
    pub(super) left: Option<u32>,
    /// One past the PSN of the newest packet sent.
    pub(super) sent_end: Psn,
}

impl Harness {
    pub(super) fn require_quanta(&mut self) {
        if let AnyQp::Rc(qp) = &mut self.qp {
            qp.require_send_quanta(true);
            self.quantum.left = Some(0);
        }
    }

    /// Renews the quantum of the connection, if it requires quanta.
    pub(super) fn renew_quantum(&mut self, bytes: u32) {
        if let AnyQp::Rc(qp) = &mut self.qp {
            qp.renew_send_quantum(bytes);
            let packets = bytes / self.mtu as u32;
            self.quantum.left = self.quantum.left.map(|left| left.max(packets));
        }
    }

    /// Checks that the number of new packets is within the quantum, and deducts them.
    pub(super) fn check_quantum(&mut self) {
        let attr = self.attributes();
        if !attr.state.initiates() {
            return;
        }
        let new = attr.sq_psn.diff(self.quantum.sent_end);
        if new > 0 {
            self.quantum.sent_end = attr.sq_psn;
        }
        if let Some(left) = &mut self.quantum.left {
            let new = new.max(0) as u32;
            assert!(new <= *left, "{new} new packets with a quantum of {left}");
            *left -= new;
        }
    }
}
