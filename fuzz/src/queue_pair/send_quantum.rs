//! Send quanta: the limit of new packets for a connection that must request them.

use urxe_proto::psn::Psn;
use urxe_proto::qp::QpAttr;
use urxe_proto::rc::RcQp;

/// The new packets that a connection may send.
#[derive(Clone, Copy, Default)]
pub(super) struct SendQuantum {
    /// In packets; `None` for no limit.
    left: Option<u32>,
    /// One past the PSN of the newest packet sent.
    sent_end: Psn,
}

impl SendQuantum {
    /// Makes a connection require quanta.
    pub(super) fn require(&mut self, qp: &mut RcQp) {
        qp.require_send_quanta(true);
        self.left = Some(0);
    }

    /// Renews the quantum of a connection with this MTU, if it requires quanta.
    pub(super) fn renew(&mut self, qp: &mut RcQp, bytes: u32, mtu: usize) {
        qp.renew_send_quantum(bytes);
        let packets = bytes / mtu as u32;
        self.left = self.left.map(|left| left.max(packets));
    }

    /// Starts at the PSN of the next packet, after a change of state.
    pub(super) fn restart(&mut self, psn: Psn) {
        self.sent_end = psn;
    }

    /// Checks that the number of new packets is within the quantum, and deducts them.
    pub(super) fn check(&mut self, attr: &QpAttr) {
        if !attr.state.initiates() {
            return;
        }
        let new = attr.sq_psn.diff(self.sent_end);
        if new > 0 {
            self.sent_end = attr.sq_psn;
        }
        if let Some(left) = &mut self.left {
            let new = new.max(0) as u32;
            assert!(new <= *left, "{new} new packets with a quantum of {left}");
            *left -= new;
        }
    }
}
