//! Making queue pairs.

use super::super::change::modify;
use super::super::values::{Bits, Count, Length};
use super::super::world::World;
use super::Make;
use arbitrary::Arbitrary;
use libc::c_void;
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

/// What every queue pair is made of.
#[derive(Arbitrary, Debug)]
pub(crate) struct Made {
    pd: u8,
    cqs: [u8; 2],
    srq: u8,
    cap: [Count; 5],
    kind: u8,
    signals_all: bool,
}

/// Types of queue pairs that there are, and one that there is not.
const SERVICES: [ibv_qp_type; 8] = [
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

/// A queue pair has room for what was asked for, in queues that it has.
fn at_least(wanted: &ibv_qp_cap, has: &ibv_qp_cap, kind: ibv_qp_type, srq: *mut ibv_srq) {
    if kind != IBV_QPT_XRC_RECV {
        assert!(has.max_send_wr >= wanted.max_send_wr);
        assert!(has.max_send_sge >= wanted.max_send_sge);
        assert!(has.max_inline_data >= wanted.max_inline_data);
    }
    if srq.is_null() && !matches!(kind, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) {
        assert!(has.max_recv_wr >= wanted.max_recv_wr);
        assert!(has.max_recv_sge >= wanted.max_recv_sge);
    }
}

impl Make {
    pub(super) unsafe fn qp_ex(&self, world: &mut World) {
        match self {
            Make::QpEx {
                second,
                basic,
                mask,
                xrcd,
                table,
                flags,
                operations,
                hash,
            } => {
                let common = basic.shown(world);
                let mut key = [7; 64];
                let mut attr = ibv_qp_init_attr_ex::zeroed();
                (attr.send_cq, attr.recv_cq, attr.srq) =
                    (common.send_cq, common.recv_cq, common.srq);
                (attr.cap, attr.qp_type) = (common.cap, common.qp_type);
                attr.sq_sig_all = common.sq_sig_all;
                attr.comp_mask = mask.get();
                (attr.pd, attr.xrcd) = (world.pick(basic.pd), world.pick(*xrcd));
                attr.rwq_ind_tbl = world.pick(*table);
                (attr.create_flags, attr.send_ops_flags) = (flags.get(), operations.get().into());
                attr.rx_hash_conf = ibv_rx_hash_conf {
                    rx_hash_function: hash.0,
                    rx_hash_key_len: hash.1 % 65,
                    rx_hash_key: key.as_mut_ptr(),
                    rx_hash_fields_mask: hash.2,
                };
                let Some(create) = world.ops().create_qp_ex else {
                    return;
                };
                let wanted = attr.cap;
                // SAFETY: the caller's promise, as below.
                let made = unsafe { create(world.context(*second), &raw mut attr) };
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
                if world.add("ibv_create_qp_ex", made, &uses).is_some() && !spread {
                    at_least(&wanted, &attr.cap, attr.qp_type, attr.srq);
                }
            }
            Make::OpenQp {
                second,
                xrcd,
                mask,
                kind,
                number,
            } => {
                let xrcd = world.pick::<ibv_xrcd>(*xrcd);
                let mut attr = ibv_qp_open_attr {
                    comp_mask: mask.get(),
                    qp_num: match number {
                        // SAFETY: what is picked is null or lives.
                        Ok(which) => unsafe {
                            world
                                .pick::<ibv_qp>(*which)
                                .as_ref()
                                .map_or(0, |qp| qp.qp_num)
                        },
                        Err(number) => *number,
                    },
                    xrcd,
                    qp_context: ptr::null_mut(),
                    qp_type: SERVICES[usize::from(*kind) % SERVICES.len()],
                };
                let Some(open) = world.ops().open_qp else {
                    return;
                };
                // SAFETY: as above.
                let made = unsafe { open(world.context(*second), &raw mut attr) };
                world.add("ibv_open_qp", made, &[xrcd.cast()]);
            }
            _ => {}
        }
    }
}

impl Made {
    pub(super) unsafe fn make(&self, world: &mut World) {
        let mut attr = self.shown(world);
        let pd = world.pick::<ibv_pd>(self.pd);
        let wanted = attr.cap;
        // SAFETY: as above.
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
        if world.add("ibv_create_qp", made, used).is_some() {
            at_least(&wanted, &attr.cap, attr.qp_type, attr.srq);
        }
    }

    fn shown(&self, world: &World) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: world.pick(self.cqs[0]),
            recv_cq: world.pick(self.cqs[1]),
            srq: world.pick(self.srq),
            cap: cap(self.cap),
            qp_type: SERVICES[usize::from(self.kind) % SERVICES.len()],
            sq_sig_all: self.signals_all.into(),
        }
    }
}

/// Two queue pairs that are connected with each other, and what they need for it.
#[derive(Arbitrary, Debug)]
pub(crate) struct Pair {
    kind: u8,
    shared: bool,
    access: Bits,
    /// How long they wait for acknowledgements.
    timeout: u8,
}

impl Pair {
    pub(crate) fn tell(&self, world: &mut World) {
        let size = Count::Few(16);
        Make::Pd { second: false }.tell(world);
        Make::Cq {
            second: false,
            cqe: Count::Few(64),
            channel: 0,
            vector: 0,
        }
        .tell(world);
        if self.shared {
            Make::Srq {
                pd: 0,
                sizes: [size, Count::Few(4), Count::Few(0)],
            }
            .tell(world);
        }
        Make::Mr {
            pd: 0,
            at: 0x1000,
            length: Some(Length::Middle(0x8000)),
            access: Bits::Low(0x1f),
            iova: None,
        }
        .tell(world);
        for _ in 0..2 {
            Make::QpEx {
                second: false,
                basic: Made {
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
                // All but TSO.
                operations: Bits::Any(0x1bff),
                hash: (0, 0, 0),
            }
            .tell(world);
        }
        for (qp, peer) in [(0, 1), (1, 0)] {
            for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
                modify(
                    world,
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
