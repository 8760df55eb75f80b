//! Conversion of queue pair attributes between the C structures and the driver's types.

use std::ffi::c_int;

use urxe_driver::qp::QpCap;
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, PathMigState, QpAttr, QpState};

use crate::errno::Errno;
use crate::ffi::*;

/// Converts an attribute mask.
///
/// # Errors
/// `EOPNOTSUPP` for bits that name no attribute.
pub(crate) fn mask_from(mask: c_int) -> Result<AttrMask, Errno> {
    AttrMask::from_bits(mask.cast_unsigned()).ok_or(Errno(libc::EOPNOTSUPP))
}

/// Converts the attributes that `mask` names. A program need not set the others.
///
/// # Errors
/// `EINVAL` for a value that is not defined for its type.
pub(crate) fn attributes_from(attr: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr, Errno> {
    let mut out = QpAttr::default();
    let named = |bit: AttrMask| mask.contains(bit);
    if named(AttrMask::STATE) {
        out.state = state_from(attr.qp_state)?;
    }
    if named(AttrMask::CUR_STATE) {
        out.cur_state = state_from(attr.cur_qp_state)?;
    }
    if named(AttrMask::ACCESS_FLAGS) {
        let access = attr.qp_access_flags & !IBV_ACCESS_OPTIONAL_RANGE;
        out.access = Access::from_bits(access).ok_or_else(|| bad("access flags"))?;
    }
    if named(AttrMask::AV) {
        out.av = address_from(&attr.ah_attr)?;
    }
    if named(AttrMask::ALT_PATH) {
        out.alt_av = address_from(&attr.alt_ah_attr)?;
    }
    if named(AttrMask::PATH_MTU) {
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_number);
        out.path_mtu = mtu.ok_or_else(|| bad("path MTU"))?;
    }
    if named(AttrMask::PATH_MIG_STATE) {
        out.path_mig_state = match attr.path_mig_state {
            IBV_MIG_MIGRATED => PathMigState::Migrated,
            IBV_MIG_REARM => PathMigState::Rearm,
            IBV_MIG_ARMED => PathMigState::Armed,
            _ => return Err(bad("path migration state")),
        };
    }
    // Every value of the other members is valid for its type. The driver checks the ranges.
    out.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    out.pkey_index = attr.pkey_index;
    out.port = attr.port_num;
    out.qkey = QKey(attr.qkey);
    out.alt_pkey_index = attr.alt_pkey_index;
    out.alt_port = attr.alt_port_num;
    out.alt_timeout = attr.alt_timeout;
    out.timeout = attr.timeout;
    out.retry_cnt = attr.retry_cnt;
    out.rnr_retry = attr.rnr_retry;
    out.rq_psn = Psn::new(attr.rq_psn);
    out.sq_psn = Psn::new(attr.sq_psn);
    out.max_rd_atomic = attr.max_rd_atomic;
    out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    out.min_rnr_timer = attr.min_rnr_timer;
    out.dest_qpn = Qpn::new(attr.dest_qp_num);
    out.rate_limit = attr.rate_limit;
    Ok(out)
}

fn bad(what: &str) -> Errno {
    tracing::warn!("queue pair: no such {what}");
    Errno(libc::EINVAL)
}

fn state_from(number: ibv_qp_state) -> Result<QpState, Errno> {
    QpState::from_number(number).ok_or_else(|| bad("state"))
}

pub(crate) fn address_from(attr: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    crate::query::check_port(attr.port_num).map_err(|_| bad("port in the address"))?;
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
pub(crate) fn to_ibv_qp_attr(attr: &QpAttr, cap: &QpCap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as ibv_qp_state,
        cur_qp_state: attr.cur_state as ibv_qp_state,
        path_mtu: ibv_mtu::from(attr.path_mtu as u8),
        path_mig_state: attr.path_mig_state as ibv_mig_state,
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qpn.get(),
        qp_access_flags: attr.access.bits(),
        cap: to_ibv_qp_cap(cap),
        ah_attr: to_ibv_ah_attr(&attr.av),
        alt_ah_attr: to_ibv_ah_attr(&attr.alt_av),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

pub(crate) fn to_ibv_ah_attr(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: u8::from(av.is_global),
        port_num: av.port,
    }
}

pub(crate) fn cap_from(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

pub(crate) fn to_ibv_qp_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline,
    }
}
