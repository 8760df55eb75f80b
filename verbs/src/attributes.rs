//! Conversion of queue pair attributes between the C structures and the driver's types.

use std::ffi::c_int;

use urxe_driver::qp::QpCap;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, PathMigState, QpAttr, QpState};

use super::errno::Errno;
use super::ffi::*;

/// Converts an attribute mask.
///
/// # Errors
/// `EOPNOTSUPP` for bits that name no attribute.
pub(super) fn mask_from(mask: c_int) -> Result<AttrMask, Errno> {
    AttrMask::from_bits(mask.cast_unsigned()).ok_or(Errno(libc::EOPNOTSUPP))
}

/// Converts the attributes that `mask` names. A program need not set the others.
///
/// # Errors
/// `EINVAL` for a value that is not defined for its type.
pub(super) fn attributes_from(attr: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr, Errno> {
    let mut ours = QpAttr::default();
    let named = |bit: AttrMask| mask.contains(bit);
    if named(AttrMask::STATE) {
        ours.state = state_from(attr.qp_state)?;
    }
    if named(AttrMask::CUR_STATE) {
        ours.cur_state = state_from(attr.cur_qp_state)?;
    }
    if named(AttrMask::ACCESS_FLAGS) {
        let access = attr.qp_access_flags & !IBV_ACCESS_OPTIONAL_RANGE;
        ours.access = Access::from_bits(access).ok_or_else(|| bad("access flags"))?;
    }
    if named(AttrMask::AV) {
        ours.av = address_from(&attr.ah_attr)?;
    }
    if named(AttrMask::ALT_PATH) {
        ours.alt_av = address_from(&attr.alt_ah_attr)?;
    }
    if named(AttrMask::PATH_MTU) {
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_number);
        ours.path_mtu = mtu.ok_or_else(|| bad("path MTU"))?;
    }
    if named(AttrMask::PATH_MIG_STATE) {
        ours.path_mig_state = match attr.path_mig_state {
            IBV_MIG_MIGRATED => PathMigState::Migrated,
            IBV_MIG_REARM => PathMigState::Rearm,
            IBV_MIG_ARMED => PathMigState::Armed,
            _ => return Err(bad("path migration state")),
        };
    }
    // Every value of the other members is valid for its type. The driver checks the ranges.
    ours.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    ours.pkey_index = attr.pkey_index;
    ours.port = attr.port_num;
    ours.qkey = QKey(attr.qkey);
    ours.alt_pkey_index = attr.alt_pkey_index;
    ours.alt_port = attr.alt_port_num;
    ours.alt_timeout = attr.alt_timeout;
    ours.timeout = attr.timeout;
    ours.retry_cnt = attr.retry_cnt;
    ours.rnr_retry = attr.rnr_retry;
    ours.rq_psn = Psn::new(attr.rq_psn);
    ours.sq_psn = Psn::new(attr.sq_psn);
    ours.max_rd_atomic = attr.max_rd_atomic;
    ours.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    ours.min_rnr_timer = attr.min_rnr_timer;
    ours.dest_qpn = Qpn::new(attr.dest_qp_num);
    ours.rate_limit = attr.rate_limit;
    Ok(ours)
}

fn bad(what: &str) -> Errno {
    tracing::warn!("queue pair: no such {what}");
    Errno(libc::EINVAL)
}

fn state_from(number: ibv_qp_state) -> Result<QpState, Errno> {
    QpState::from_number(number).ok_or_else(|| bad("state"))
}

pub(super) fn address_from(attr: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    super::query::check_port(attr.port_num).map_err(|_| bad("port in the address"))?;
    Ok(AddressVector {
        // SAFETY: every member of the union is 16 bytes, and every bit pattern is valid for them.
        dgid: Gid(unsafe { attr.grh.dgid.raw }),
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        is_global: attr.is_global != 0,
        sl: attr.sl,
        dlid: attr.dlid,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        port: attr.port_num,
    })
}

/// Converts a queue pair's attributes for the program.
pub(super) fn shown_attributes(ours: &QpAttr, cap: &QpCap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: ours.state as ibv_qp_state,
        cur_qp_state: ours.cur_state as ibv_qp_state,
        path_mtu: ibv_mtu::from(ours.path_mtu as u8),
        path_mig_state: ours.path_mig_state as ibv_mig_state,
        qkey: ours.qkey.0,
        rq_psn: ours.rq_psn.get(),
        sq_psn: ours.sq_psn.get(),
        dest_qp_num: ours.dest_qpn.get(),
        qp_access_flags: ours.access.bits(),
        cap: shown_cap(cap),
        ah_attr: shown_address(&ours.av),
        alt_ah_attr: shown_address(&ours.alt_av),
        pkey_index: ours.pkey_index,
        alt_pkey_index: ours.alt_pkey_index,
        en_sqd_async_notify: u8::from(ours.en_sqd_async_notify),
        sq_draining: u8::from(ours.sq_draining),
        max_rd_atomic: ours.max_rd_atomic,
        max_dest_rd_atomic: ours.max_dest_rd_atomic,
        min_rnr_timer: ours.min_rnr_timer,
        port_num: ours.port,
        timeout: ours.timeout,
        retry_cnt: ours.retry_cnt,
        rnr_retry: ours.rnr_retry,
        alt_port_num: ours.alt_port,
        alt_timeout: ours.alt_timeout,
        rate_limit: ours.rate_limit,
    }
}

pub(super) fn shown_address(ours: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: ours.dgid.0 },
            flow_label: ours.flow_label,
            sgid_index: ours.sgid_index,
            hop_limit: ours.hop_limit,
            traffic_class: ours.traffic_class,
        },
        dlid: ours.dlid,
        sl: ours.sl,
        src_path_bits: ours.src_path_bits,
        static_rate: ours.static_rate,
        is_global: u8::from(ours.is_global),
        port_num: ours.port,
    }
}

pub(super) fn cap_from(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

pub(super) fn shown_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline,
    }
}
