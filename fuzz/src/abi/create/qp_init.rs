//! Creating a queue pair by `ibv_create_qp`.

use super::super::harness::Harness;
use super::super::values::Count;
use arbitrary::Arbitrary;
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

/// The attributes that every queue pair needs.
#[derive(Arbitrary, Debug)]
pub(crate) struct QpInit {
    pub(super) pd: u8,
    pub(super) cqs: [u8; 2],
    pub(super) srq: u8,
    pub(super) cap: [Count; 5],
    pub(super) kind: u8,
    pub(super) signals_all: bool,
}

/// All queue pair types, and an invalid one.
pub(super) const QP_TYPES: [ibv_qp_type; 8] = [
    IBV_QPT_RC,
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_QPT_RAW_PACKET,
    IBV_QPT_XRC_SEND,
    IBV_QPT_XRC_RECV,
    IBV_QPT_DRIVER,
    77,
];

fn cap(counts: [Count; 5]) -> ibv_qp_cap {
    let [send_wr, recv_wr, send_sge, recv_sge, inline] = counts.map(Count::get);
    ibv_qp_cap {
        max_send_wr: send_wr,
        max_recv_wr: recv_wr,
        max_send_sge: send_sge,
        max_recv_sge: recv_sge,
        max_inline_data: inline,
    }
}

/// Checks that the queue pair has at least the requested capacities, for the queues that it has.
pub(super) fn check_cap(
    wanted: &ibv_qp_cap,
    actual: &ibv_qp_cap,
    kind: ibv_qp_type,
    srq: *mut ibv_srq,
) {
    if kind != IBV_QPT_XRC_RECV {
        assert!(actual.max_send_wr >= wanted.max_send_wr);
        assert!(actual.max_send_sge >= wanted.max_send_sge);
        assert!(actual.max_inline_data >= wanted.max_inline_data);
    }
    if srq.is_null() && !matches!(kind, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) {
        assert!(actual.max_recv_wr >= wanted.max_recv_wr);
        assert!(actual.max_recv_sge >= wanted.max_recv_sge);
    }
}

impl QpInit {
    /// # Safety
    /// All objects of `harness` must be live.
    pub(super) unsafe fn call(&self, harness: &mut Harness) {
        let mut attr = self.to_verbs(harness);
        let pd = harness.pick::<ibv_pd>(self.pd);
        let wanted = attr.cap;
        // SAFETY: the objects are null or live, and `attr` outlives the call.
        let made = unsafe { ibv_create_qp(pd, &raw mut attr) };
        let own = [
            pd.cast(),
            attr.send_cq.cast(),
            attr.recv_cq.cast(),
            attr.srq.cast(),
        ];
        let used = match attr.qp_type {
            IBV_QPT_XRC_SEND => &own[..2],
            _ => &own,
        };
        if harness.add("ibv_create_qp", made, used).is_some() {
            check_cap(&wanted, &attr.cap, attr.qp_type, attr.srq);
        }
    }

    pub(super) fn to_verbs(&self, harness: &Harness) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: harness.pick(self.cqs[0]),
            recv_cq: harness.pick(self.cqs[1]),
            srq: harness.pick(self.srq),
            cap: cap(self.cap),
            qp_type: QP_TYPES[usize::from(self.kind) % QP_TYPES.len()],
            sq_sig_all: self.signals_all.into(),
        }
    }
}
