//! Creating queue pairs.

use super::super::change::modify;
use super::super::harness::Harness;
use super::super::values::{Bits, Count, Length};
use super::Create;
use super::qp_init::{QP_TYPES, QpInit, check_cap};
use arbitrary::Arbitrary;
use libc::c_void;
use std::ptr;
use urxe_verbs::ffi::*;

impl Create {
    /// # Safety
    /// All objects of `harness` must be live.
    pub(super) unsafe fn qp_ex(&self, harness: &mut Harness) {
        match self {
            Create::QpEx {
                second,
                basic,
                mask,
                xrcd,
                table,
                flags,
                operations,
                hash,
            } => {
                let common = basic.to_verbs(harness);
                let mut key = [7; 64];
                let mut attr = ibv_qp_init_attr_ex::zeroed();
                (attr.send_cq, attr.recv_cq, attr.srq) =
                    (common.send_cq, common.recv_cq, common.srq);
                (attr.cap, attr.qp_type) = (common.cap, common.qp_type);
                attr.sq_sig_all = common.sq_sig_all;
                attr.comp_mask = mask.get();
                (attr.pd, attr.xrcd) = (harness.pick(basic.pd), harness.pick(*xrcd));
                attr.rwq_ind_tbl = harness.pick(*table);
                (attr.create_flags, attr.send_ops_flags) = (flags.get(), operations.get().into());
                attr.rx_hash_conf = ibv_rx_hash_conf {
                    rx_hash_function: hash.0,
                    rx_hash_key_len: hash.1 % 65,
                    rx_hash_key: key.as_mut_ptr(),
                    rx_hash_fields_mask: hash.2,
                };
                let Some(create) = harness.ops().create_qp_ex else {
                    return;
                };
                let wanted = attr.cap;
                // SAFETY: the context is open, the objects are null or live, and `attr` and the
                // hash key outlive the call.
                let made = unsafe { create(harness.context(*second), &raw mut attr) };
                let spread = attr.comp_mask & IBV_QP_INIT_ATTR_IND_TABLE != 0;
                let uses: [*mut c_void; 4] = match attr.qp_type {
                    IBV_QPT_XRC_RECV => [
                        attr.xrcd.cast(),
                        ptr::null_mut(),
                        ptr::null_mut(),
                        ptr::null_mut(),
                    ],
                    IBV_QPT_XRC_SEND => [
                        attr.pd.cast(),
                        attr.send_cq.cast(),
                        ptr::null_mut(),
                        ptr::null_mut(),
                    ],
                    _ if spread => [
                        attr.pd.cast(),
                        attr.rwq_ind_tbl.cast(),
                        ptr::null_mut(),
                        ptr::null_mut(),
                    ],
                    _ => [
                        attr.pd.cast(),
                        attr.send_cq.cast(),
                        attr.recv_cq.cast(),
                        attr.srq.cast(),
                    ],
                };
                if harness.add("ibv_create_qp_ex", made, &uses).is_some() && !spread {
                    check_cap(&wanted, &attr.cap, attr.qp_type, attr.srq);
                }
            }
            Create::OpenQp {
                second,
                xrcd,
                mask,
                kind,
                number,
            } => {
                let xrcd = harness.pick::<ibv_xrcd>(*xrcd);
                let mut attr = ibv_qp_open_attr {
                    comp_mask: mask.get(),
                    qp_num: match number {
                        // SAFETY: `pick` returns null or a live queue pair.
                        Ok(which) => unsafe {
                            harness
                                .pick::<ibv_qp>(*which)
                                .as_ref()
                                .map_or(0, |qp| qp.qp_num)
                        },
                        Err(number) => *number,
                    },
                    xrcd,
                    qp_context: ptr::null_mut(),
                    qp_type: QP_TYPES[usize::from(*kind) % QP_TYPES.len()],
                };
                let Some(open) = harness.ops().open_qp else {
                    return;
                };
                // SAFETY: the context is open, `xrcd` is null or live, and `attr` outlives the
                // call.
                let made = unsafe { open(harness.context(*second), &raw mut attr) };
                harness.add("ibv_open_qp", made, &[xrcd.cast()]);
            }
            _ => {}
        }
    }
}

/// Two connected queue pairs, and the objects they need.
#[derive(Arbitrary, Debug)]
pub(crate) struct Pair {
    kind: u8,
    shared: bool,
    access: Bits,
    /// The ACK timeout.
    timeout: u8,
}

impl Pair {
    pub(crate) fn run(&self, harness: &mut Harness) {
        let size = Count::Few(16);
        Create::Pd { second: false }.run(harness);
        Create::Cq {
            second: false,
            cqe: Count::Few(64),
            channel: 0,
            vector: 0,
        }
        .run(harness);
        if self.shared {
            Create::Srq {
                pd: 0,
                sizes: [size, Count::Few(4), Count::Few(0)],
            }
            .run(harness);
        }
        Create::Mr {
            pd: 0,
            at: 0x1000,
            length: Some(Length::Middle(0x8000)),
            access: Bits::Low(0x1f),
            iova: None,
        }
        .run(harness);
        for _ in 0..2 {
            Create::QpEx {
                second: false,
                basic: QpInit {
                    pd: 0,
                    cqs: [0, 0],
                    srq: if self.shared { 0 } else { u8::MAX },
                    cap: [size, size, Count::Few(4), Count::Few(4), Count::Few(100)],
                    kind: self.kind % 3,
                    signals_all: false,
                },
                mask: Bits::Any(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
                xrcd: u8::MAX,
                table: u8::MAX,
                flags: Bits::Low(0),
                // All operations except TSO.
                operations: Bits::Any(0x1bff),
                hash: (0, 0, 0),
            }
            .run(harness);
        }
        for (qp, peer) in [(0, 1), (1, 0)] {
            for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
                modify(
                    harness,
                    qp,
                    peer,
                    state,
                    self.access,
                    self.timeout % 16,
                    0,
                    &[],
                );
            }
        }
    }
}
