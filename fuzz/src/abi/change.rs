//! Modifying objects.

use super::harness::{Harness, check_errno, check_status};
use super::values::{Bits, ByteOverwrite, Count, Length, Range, address, poke};
use arbitrary::Arbitrary;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

#[derive(Arbitrary, Debug)]
pub(super) enum Change {
    /// To a state, with the required attributes and others.
    Qp {
        qp: u8,
        peer: u8,
        state: u8,
        access: Bits,
        timeout: u8,
        /// Bits of the mask to invert.
        mask: Bits,
        pokes: Vec<ByteOverwrite>,
    },
    Rate {
        qp: u8,
        pokes: Vec<ByteOverwrite>,
    },
    Srq {
        srq: u8,
        sizes: [Count; 2],
        mask: Bits,
    },
    Cq {
        cq: u8,
        pokes: Vec<ByteOverwrite>,
    },
    Resize {
        cq: u8,
        cqe: Count,
    },
    Wq {
        wq: u8,
        state: u8,
        pokes: Vec<ByteOverwrite>,
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
        pokes: Vec<ByteOverwrite>,
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

/// The attributes that a transition requires, by service and target state.
fn required_mask(kind: ibv_qp_type, state: ibv_qp_state) -> u32 {
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

/// Moves a queue pair to `state`, connected to `peer`.
#[expect(clippy::too_many_arguments, reason = "these are the members of a step")]
pub(super) fn modify(
    harness: &Harness,
    qp: u8,
    peer: u8,
    state: ibv_qp_state,
    access: Bits,
    timeout: u8,
    mask: u32,
    pokes: &[ByteOverwrite],
) {
    let (qp, peer) = (harness.pick::<ibv_qp>(qp), harness.pick::<ibv_qp>(peer));
    // SAFETY: `pick` returns null or a live queue pair.
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
    // SAFETY: all members are integers, for which any bytes are valid.
    unsafe { poke(&mut attr, pokes) };
    let mask = required_mask(kind, state) ^ mask;
    // SAFETY: `qp` is null or live, and `attr` outlives the call.
    let status = unsafe { ibv_modify_qp(qp, &raw mut attr, mask.cast_signed()) };
    if check_status("ibv_modify_qp", status) && mask & IBV_QP_STATE != 0 {
        // SAFETY: the call succeeded, so `qp` is not null; it is live. The library writes the
        // member atomically.
        let actual = unsafe { (&raw const (*qp).state).read_volatile() };
        assert_eq!(actual, attr.qp_state);
    }
}

impl Change {
    pub(super) fn run(&self, harness: &mut Harness) {
        // SAFETY: `pick` returns null or live objects, and each structure outlives its call.
        unsafe { self.call(harness) };
    }

    /// # Safety
    /// All objects of `harness` must be live.
    unsafe fn call(&self, harness: &mut Harness) {
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
                    harness,
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
                // SAFETY: all members are integers, for which zeros are valid.
                let mut attr: ibv_qp_rate_limit_attr = unsafe { std::mem::zeroed() };
                // SAFETY: all members are integers, for which any bytes are valid.
                unsafe { poke(&mut attr, pokes) };
                let Some(limit) = harness.ops().modify_qp_rate_limit else {
                    return;
                };
                // SAFETY: the queue pair is null or live, and `attr` outlives the call.
                check_status("ibv_modify_qp_rate_limit", unsafe {
                    limit(harness.pick(*qp), &raw mut attr)
                });
            }
            Change::Srq { srq, sizes, mask } => {
                let mut attr = ibv_srq_attr {
                    max_wr: sizes[0].get(),
                    max_sge: 0,
                    srq_limit: sizes[1].get(),
                };
                let mask = mask.get().cast_signed();
                // SAFETY: the queue is null or live, and `attr` outlives the call.
                let status = unsafe { ibv_modify_srq(harness.pick(*srq), &raw mut attr, mask) };
                check_status("ibv_modify_srq", status);
            }
            Change::Cq { cq, pokes } => {
                let mut attr = ibv_modify_cq_attr {
                    attr_mask: IBV_CQ_ATTR_MODERATE,
                    moderate: ibv_moderate_cq {
                        cq_count: 2,
                        cq_period: 100,
                    },
                };
                // SAFETY: all members are integers, for which any bytes are valid.
                unsafe { poke(&mut attr, pokes) };
                let Some(modify) = harness.ops().modify_cq else {
                    return;
                };
                // SAFETY: the queue is null or live, and `attr` outlives the call.
                check_status("ibv_modify_cq", unsafe {
                    modify(harness.pick(*cq), &raw mut attr)
                });
            }
            Change::Resize { cq, cqe } => {
                let cq = harness.pick::<ibv_cq>(*cq);
                // SAFETY: the queue is null or live.
                let status = unsafe { ibv_resize_cq(cq, cqe.get().cast_signed()) };
                if check_status("ibv_resize_cq", status) {
                    // SAFETY: the call succeeded, so `cq` is not null; it is live.
                    assert!(unsafe { (*cq).cqe } >= cqe.get().cast_signed());
                }
            }
            Change::Wq { wq, state, pokes } => {
                // SAFETY: all members are integers, for which zeros are valid.
                let mut attr: ibv_wq_attr = unsafe { std::mem::zeroed() };
                (attr.attr_mask, attr.wq_state) = (IBV_WQ_ATTR_STATE, (*state).into());
                // SAFETY: all members are integers, for which any bytes are valid.
                unsafe { poke(&mut attr, pokes) };
                let Some(modify) = harness.ops().modify_wq else {
                    return;
                };
                // SAFETY: the queue is null or live, and `attr` outlives the call.
                check_status("ibv_modify_wq", unsafe {
                    modify(harness.pick(*wq), &raw mut attr)
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
                let (mr, pd) = (harness.pick::<ibv_mr>(*mr), harness.pick::<ibv_pd>(*pd));
                let length = match length {
                    Some(length) => harness.memory.within(*at, length.get()),
                    None => usize::MAX - usize::from(*at),
                };
                // The flags decide whether the new range and access apply, so allow for both.
                if length <= usize::from(u16::MAX) + 1 {
                    harness.memory.allow_writes(*at, length);
                }
                let (start, flags) = (harness.memory.pointer(*at), flags.get());
                // The region may become writable now, so its current range may change.
                if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 && !mr.is_null() {
                    // SAFETY: `mr` is not null, so it is a live region.
                    let (addr, len) = unsafe { ((*mr).addr, (*mr).length) };
                    harness.memory.allow_writes_at(addr, len);
                }
                let access = access.get().cast_signed();
                // SAFETY: the region and the domain are null or live. The range is within the
                // program's memory, or wraps around the address space, which the call rejects.
                let code =
                    unsafe { ibv_rereg_mr(mr, flags.cast_signed(), pd, start, length, access) };
                assert!((IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW..=0).contains(&code));
                if check_errno("ibv_rereg_mr", code) && flags & IBV_REREG_MR_CHANGE_PD != 0 {
                    harness.replace_use(mr, pd.cast());
                }
            }
            Change::Bind {
                qp,
                mw,
                flags,
                range,
            } => {
                let mut bind = ibv_mw_bind {
                    wr_id: harness.new_id(),
                    send_flags: flags.get(),
                    bind_info: range.to_verbs(harness),
                };
                let Some(function) = harness.ops().context.ops.bind_mw else {
                    return;
                };
                // SAFETY: the objects are null or live, and `bind` outlives the call.
                let status =
                    unsafe { function(harness.pick(*qp), harness.pick(*mw), &raw mut bind) };
                if check_status("ibv_bind_mw", status) {
                    harness.posted(bind.wr_id);
                }
            }
            Change::Group {
                qp,
                leave,
                v6,
                last,
                pokes,
            } => {
                let qp = harness.pick::<ibv_qp>(*qp);
                let mut raw = [0; 16];
                match v6 {
                    true => raw[..2].copy_from_slice(&[0xff, 0x02]),
                    false => raw[10..13].copy_from_slice(&[0xff, 0xff, 224]),
                }
                raw[15] = *last;
                // SAFETY: any bytes are valid for an array of bytes.
                unsafe { poke(&mut raw, pokes) };
                let gid = ibv_gid { raw };
                // SAFETY: the queue pair is null or live, and `gid` outlives the call.
                let status = unsafe {
                    match leave {
                        true => ibv_detach_mcast(qp, &raw const gid, 0),
                        false => ibv_attach_mcast(qp, &raw const gid, 0),
                    }
                };
                if check_status("ibv_attach_mcast or ibv_detach_mcast", status)
                    && let Some(groups) = harness.groups_of(qp)
                {
                    match leave {
                        true => assert!(groups.remove(&raw), "the group was not attached"),
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
                let Some(attach) = harness.ops().attach_counters_point_flow else {
                    return;
                };
                let (counters, flow) = (harness.pick(*counters), harness.pick(*flow));
                // SAFETY: the objects are null or live, and `attr` outlives the call.
                let status = unsafe { attach(counters, &raw mut attr, flow) };
                check_status("ibv_attach_counters_point_flow", status);
            }
            Change::DmIn {
                dm,
                offset,
                from,
                length,
            } => {
                let dm = harness.pick::<ibv_dm>(*dm);
                // SAFETY: `pick` returns null or a live object.
                let Some(copy) = (unsafe { dm.as_ref() }).and_then(|dm| dm.memcpy_to_dm) else {
                    return;
                };
                let length = harness.memory.within(*from, length.get());
                let from = harness.memory.pointer(*from);
                // SAFETY: `dm` is live, and `length` bytes at `from` are within the program's
                // memory.
                check_status("ibv_memcpy_to_dm", unsafe {
                    copy(dm, offset.get().into(), from, length)
                });
            }
            Change::DmOut {
                dm,
                offset,
                to,
                length,
            } => {
                let dm = harness.pick::<ibv_dm>(*dm);
                // SAFETY: `pick` returns null or a live object.
                let Some(copy) = (unsafe { dm.as_ref() }).and_then(|dm| dm.memcpy_from_dm) else {
                    return;
                };
                let length = harness.memory.within(*to, length.get());
                let place = harness.memory.pointer(*to);
                // SAFETY: `dm` is live, and `length` bytes at `place` are within the program's
                // memory.
                let status = unsafe { copy(place, dm, offset.get().into(), length) };
                if check_status("ibv_memcpy_from_dm", status) {
                    harness.memory.allow_writes(*to, length);
                }
            }
        }
    }
}
