//! Changing objects.

use super::values::{Bits, Count, Length, Poke, Range, address, poke};
use super::world::{World, done, done_by_errno};
use arbitrary::Arbitrary;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

#[derive(Arbitrary, Debug)]
pub(super) enum Change {
    /// To a state, with what that takes, and more.
    Qp {
        qp: u8,
        peer: u8,
        state: u8,
        access: Bits,
        timeout: u8,
        /// Bits of the mask that are turned over.
        mask: Bits,
        pokes: Vec<Poke>,
    },
    Rate {
        qp: u8,
        pokes: Vec<Poke>,
    },
    Srq {
        srq: u8,
        sizes: [Count; 2],
        mask: Bits,
    },
    Cq {
        cq: u8,
        pokes: Vec<Poke>,
    },
    Resize {
        cq: u8,
        cqe: Count,
    },
    Wq {
        wq: u8,
        state: u8,
        pokes: Vec<Poke>,
    },
    Mr {
        mr: u8,
        flags: Bits,
        pd: u8,
        at: u16,
        length: Option<Length>,
        access: Bits,
    },
    /// Binds a window of type 1.
    Bind {
        qp: u8,
        mw: u8,
        flags: Bits,
        range: Range,
    },
    Group {
        qp: u8,
        leave: bool,
        v6: bool,
        last: u8,
        pokes: Vec<Poke>,
    },
    Count {
        counters: u8,
        what: u8,
        index: Count,
        mask: Bits,
        flow: u8,
    },
    DmIn {
        dm: u8,
        offset: Length,
        from: u16,
        length: Length,
    },
    DmOut {
        dm: u8,
        offset: Length,
        to: u16,
        length: Length,
    },
}

/// The attributes that a change to a state takes, for each service.
fn usual(kind: ibv_qp_type, state: ibv_qp_state) -> u32 {
    let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    let responder = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    let requester = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    let reliable = matches!(kind, IBV_QPT_RC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV);
    IBV_QP_STATE
        | match (state, kind) {
            (IBV_QPS_INIT, IBV_QPT_RAW_PACKET) => IBV_QP_PORT,
            (IBV_QPS_INIT, IBV_QPT_UD) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
            (IBV_QPS_INIT, _) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            (IBV_QPS_RTR, IBV_QPT_UC) => path,
            (IBV_QPS_RTR, _) if reliable => path | responder,
            (IBV_QPS_RTS, IBV_QPT_UC | IBV_QPT_UD) => IBV_QP_SQ_PSN,
            (IBV_QPS_RTS, _) if reliable => IBV_QP_SQ_PSN | requester,
            _ => 0,
        }
}

/// Changes a queue pair that shall work with `peer`.
#[expect(clippy::too_many_arguments, reason = "they are a step's members")]
pub(super) fn modify(
    world: &World,
    qp: u8,
    peer: u8,
    state: ibv_qp_state,
    access: Bits,
    timeout: u8,
    mask: u32,
    pokes: &[Poke],
) {
    let (qp, peer) = (world.pick::<ibv_qp>(qp), world.pick::<ibv_qp>(peer));
    // SAFETY: what is picked is null or lives.
    let (kind, peer) = unsafe {
        (
            qp.as_ref().map_or(IBV_QPT_RC, |qp| qp.qp_type),
            peer.as_ref().map_or(0, |peer| peer.qp_num),
        )
    };
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = state;
    attr.cur_qp_state = state;
    attr.port_num = 1;
    attr.qkey = 0x11;
    attr.qp_access_flags = access.get();
    attr.path_mtu = IBV_MTU_256;
    attr.ah_attr = address(&[]);
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 4;
    attr.max_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.timeout = timeout;
    attr.retry_cnt = 1;
    attr.rnr_retry = 1;
    // SAFETY: it is numbers.
    unsafe { poke(&mut attr, pokes) };
    let mask = usual(kind, state) ^ mask;
    // SAFETY: null or a queue pair, and attributes.
    let status = unsafe { ibv_modify_qp(qp, &raw mut attr, mask.cast_signed()) };
    if done("ibv_modify_qp", status) && mask & IBV_QP_STATE != 0 {
        // SAFETY: it was changed, so it is there; what urxe writes there it writes as an atomic.
        let shown = unsafe { (&raw const (*qp).state).read_volatile() };
        assert_eq!(shown, attr.qp_state);
    }
}

impl Change {
    pub(super) fn tell(&self, world: &mut World) {
        // SAFETY: pointers are null, or objects that live, or structures on the stack, or as much of the program's
        // memory as is said with them.
        unsafe { self.make(world) };
    }

    unsafe fn make(&self, world: &mut World) {
        match self {
            Change::Qp {
                qp,
                peer,
                state,
                access,
                timeout,
                mask,
                pokes,
            } => {
                let state = u32::from(state % 8);
                modify(
                    world,
                    *qp,
                    *peer,
                    state,
                    *access,
                    *timeout,
                    mask.get(),
                    pokes,
                );
            }
            Change::Rate { qp, pokes } => {
                // SAFETY: it is numbers, here and below.
                let mut attr: ibv_qp_rate_limit_attr = unsafe { std::mem::zeroed() };
                // SAFETY: as above.
                unsafe { poke(&mut attr, pokes) };
                let Some(limit) = world.ops().modify_qp_rate_limit else {
                    return;
                };
                // SAFETY: the caller's promise, as below.
                done("ibv_modify_qp_rate_limit", unsafe {
                    limit(world.pick(*qp), &raw mut attr)
                });
            }
            Change::Srq { srq, sizes, mask } => {
                let mut attr = ibv_srq_attr {
                    max_wr: sizes[0].get(),
                    max_sge: 0,
                    srq_limit: sizes[1].get(),
                };
                let mask = mask.get().cast_signed();
                // SAFETY: as above.
                let status = unsafe { ibv_modify_srq(world.pick(*srq), &raw mut attr, mask) };
                done("ibv_modify_srq", status);
            }
            Change::Cq { cq, pokes } => {
                let mut attr = ibv_modify_cq_attr {
                    attr_mask: IBV_CQ_ATTR_MODERATE,
                    moderate: ibv_moderate_cq {
                        cq_count: 2,
                        cq_period: 100,
                    },
                };
                // SAFETY: it is numbers.
                unsafe { poke(&mut attr, pokes) };
                let Some(modify) = world.ops().modify_cq else {
                    return;
                };
                // SAFETY: as above.
                done("ibv_modify_cq", unsafe {
                    modify(world.pick(*cq), &raw mut attr)
                });
            }
            Change::Resize { cq, cqe } => {
                let cq = world.pick::<ibv_cq>(*cq);
                // SAFETY: as above.
                let status = unsafe { ibv_resize_cq(cq, cqe.get().cast_signed()) };
                if done("ibv_resize_cq", status) {
                    // SAFETY: it was resized, so it is there.
                    assert!(unsafe { (*cq).cqe } >= cqe.get().cast_signed());
                }
            }
            Change::Wq { wq, state, pokes } => {
                // SAFETY: it is numbers.
                let mut attr: ibv_wq_attr = unsafe { std::mem::zeroed() };
                (attr.attr_mask, attr.wq_state) = (IBV_WQ_ATTR_STATE, (*state).into());
                // SAFETY: as above.
                unsafe { poke(&mut attr, pokes) };
                let Some(modify) = world.ops().modify_wq else {
                    return;
                };
                // SAFETY: as above.
                done("ibv_modify_wq", unsafe {
                    modify(world.pick(*wq), &raw mut attr)
                });
            }
            Change::Mr {
                mr,
                flags,
                pd,
                at,
                length,
                access,
            } => {
                let (mr, pd) = (world.pick::<ibv_mr>(*mr), world.pick::<ibv_pd>(*pd));
                let length = match length {
                    Some(length) => world.memory.within(*at, length.get()),
                    None => usize::MAX - usize::from(*at),
                };
                // Whichever of its memory and its rights it keeps, it may have both of the new ones.
                if length <= usize::from(u16::MAX) + 1 {
                    world.memory.grant(*at, length);
                }
                let (start, flags) = (world.memory.pointer(*at), flags.get());
                // A region that may be written now has been granted when it was for reading.
                if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 && !mr.is_null() {
                    // SAFETY: what is picked lives.
                    let (addr, len) = unsafe { ((*mr).addr, (*mr).length) };
                    world.memory.grant_all(addr, len);
                }
                let access = access.get().cast_signed();
                // SAFETY: as above.
                let code =
                    unsafe { ibv_rereg_mr(mr, flags.cast_signed(), pd, start, length, access) };
                assert!((IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW..=0).contains(&code));
                if done_by_errno("ibv_rereg_mr", code) && flags & IBV_REREG_MR_CHANGE_PD != 0 {
                    world.uses_instead(mr, pd.cast());
                }
            }
            Change::Bind {
                qp,
                mw,
                flags,
                range,
            } => {
                let mut bind = ibv_mw_bind {
                    wr_id: world.new_id(),
                    send_flags: flags.get(),
                    bind_info: range.shown(world),
                };
                let Some(function) = world.ops().context.ops.bind_mw else {
                    return;
                };
                // SAFETY: as above.
                let status = unsafe { function(world.pick(*qp), world.pick(*mw), &raw mut bind) };
                if done("ibv_bind_mw", status) {
                    world.posted(bind.wr_id);
                }
            }
            Change::Group {
                qp,
                leave,
                v6,
                last,
                pokes,
            } => {
                let qp = world.pick::<ibv_qp>(*qp);
                let mut raw = [0; 16];
                match v6 {
                    true => raw[..2].copy_from_slice(&[0xff, 0x02]),
                    false => raw[10..13].copy_from_slice(&[0xff, 0xff, 224]),
                }
                raw[15] = *last;
                // SAFETY: it is bytes.
                unsafe { poke(&mut raw, pokes) };
                let gid = ibv_gid { raw };
                // SAFETY: as above.
                let status = unsafe {
                    match leave {
                        true => ibv_detach_mcast(qp, &raw const gid, 0),
                        false => ibv_attach_mcast(qp, &raw const gid, 0),
                    }
                };
                if done("ibv_attach_mcast or ibv_detach_mcast", status)
                    && let Some(groups) = world.groups_of(qp)
                {
                    match leave {
                        true => assert!(groups.remove(&raw), "it was not attached"),
                        false => drop(groups.insert(raw)),
                    }
                }
            }
            Change::Count {
                counters,
                what,
                index,
                mask,
                flow,
            } => {
                let mut attr = ibv_counter_attach_attr {
                    counter_desc: (what / 0x40).into(),
                    index: index.get(),
                    comp_mask: mask.get(),
                };
                let Some(attach) = world.ops().attach_counters_point_flow else {
                    return;
                };
                let (counters, flow) = (world.pick(*counters), world.pick(*flow));
                // SAFETY: as above.
                let status = unsafe { attach(counters, &raw mut attr, flow) };
                done("ibv_attach_counters_point_flow", status);
            }
            Change::DmIn {
                dm,
                offset,
                from,
                length,
            } => {
                let dm = world.pick::<ibv_dm>(*dm);
                // SAFETY: what is picked is null or lives.
                let Some(copy) = (unsafe { dm.as_ref() }).and_then(|dm| dm.memcpy_to_dm) else {
                    return;
                };
                let length = world.memory.within(*from, length.get());
                let from = world.memory.pointer(*from);
                // SAFETY: as above.
                done("ibv_memcpy_to_dm", unsafe {
                    copy(dm, offset.get().into(), from, length)
                });
            }
            Change::DmOut {
                dm,
                offset,
                to,
                length,
            } => {
                let dm = world.pick::<ibv_dm>(*dm);
                // SAFETY: what is picked is null or lives.
                let Some(copy) = (unsafe { dm.as_ref() }).and_then(|dm| dm.memcpy_from_dm) else {
                    return;
                };
                let length = world.memory.within(*to, length.get());
                let place = world.memory.pointer(*to);
                // SAFETY: as above.
                let status = unsafe { copy(place, dm, offset.get().into(), length) };
                if done("ibv_memcpy_from_dm", status) {
                    world.memory.grant(*to, length);
                }
            }
        }
    }
}
