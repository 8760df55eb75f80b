//! The `ibv_copy_*` functions, which convert between the kernel's CM structures and those of
//! programs. rdma-core's own libraries, and some programs that talk to `/dev/infiniband/rdma_cm`,
//! use them.

use super::entry::{self, read, write};
use super::ffi::*;

fn ah_attr_from_kernel(src: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: src.grh.dgid },
            flow_label: src.grh.flow_label,
            sgid_index: src.grh.sgid_index,
            hop_limit: src.grh.hop_limit,
            traffic_class: src.grh.traffic_class,
        },
        dlid: src.dlid,
        sl: src.sl,
        src_path_bits: src.src_path_bits,
        static_rate: src.static_rate,
        is_global: src.is_global,
        port_num: src.port_num,
    }
}

/// Converts the kernel's address attributes for a program.
///
/// # Safety
/// `src` must be null or readable, and `dst` null or writable, for one structure each.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *const ib_uverbs_ah_attr,
) {
    entry::status("ibv_copy_ah_attr_from_kern", || {
        // SAFETY: `src` is null or readable and `dst` null or writable: the caller's contract,
        // section Safety.
        unsafe { write(dst, ah_attr_from_kernel(&read(src)?)) }
    });
}

/// Converts the kernel's queue pair attributes for a program.
///
/// Leaves `qp_state` and `rate_limit` unchanged. The kernel's structure is the result of a query:
/// it has the state in `cur_qp_state`, and no rate.
///
/// # Safety
/// `src` must be null or readable, and `dst` null or readable and writable, for one structure each.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *const ib_uverbs_qp_attr,
) {
    entry::status("ibv_copy_qp_attr_from_kern", || {
        // SAFETY: `dst` and `src` are null or readable: the caller's contract, section Safety.
        let (old, src) = unsafe { (read(dst)?, read(src)?) };
        let attr = ibv_qp_attr {
            qp_state: old.qp_state,
            cur_qp_state: src.cur_qp_state,
            path_mtu: src.path_mtu,
            path_mig_state: src.path_mig_state,
            qkey: src.qkey,
            rq_psn: src.rq_psn,
            sq_psn: src.sq_psn,
            dest_qp_num: src.dest_qp_num,
            qp_access_flags: src.qp_access_flags,
            cap: ibv_qp_cap {
                max_send_wr: src.max_send_wr,
                max_recv_wr: src.max_recv_wr,
                max_send_sge: src.max_send_sge,
                max_recv_sge: src.max_recv_sge,
                max_inline_data: src.max_inline_data,
            },
            ah_attr: ah_attr_from_kernel(&src.ah_attr),
            alt_ah_attr: ah_attr_from_kernel(&src.alt_ah_attr),
            pkey_index: src.pkey_index,
            alt_pkey_index: src.alt_pkey_index,
            en_sqd_async_notify: src.en_sqd_async_notify,
            sq_draining: src.sq_draining,
            max_rd_atomic: src.max_rd_atomic,
            max_dest_rd_atomic: src.max_dest_rd_atomic,
            min_rnr_timer: src.min_rnr_timer,
            port_num: src.port_num,
            timeout: src.timeout,
            retry_cnt: src.retry_cnt,
            rnr_retry: src.rnr_retry,
            alt_port_num: src.alt_port_num,
            alt_timeout: src.alt_timeout,
            rate_limit: old.rate_limit,
        };
        // SAFETY: `dst` is writable: the caller's contract, section Safety.
        unsafe { write(dst, attr) }
    });
}

/// Converts the kernel's path record for a program.
///
/// # Safety
/// `src` must be null or readable, and `dst` null or writable, for one structure each.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    dst: *mut ibv_sa_path_rec,
    src: *const ib_user_path_rec,
) {
    entry::status("ibv_copy_path_rec_from_kern", || {
        // SAFETY: `src` is null or readable: the caller's contract, section Safety.
        let src = unsafe { read(src)? };
        let record = ibv_sa_path_rec {
            dgid: ibv_gid { raw: src.dgid },
            sgid: ibv_gid { raw: src.sgid },
            dlid: src.dlid,
            slid: src.slid,
            raw_traffic: src.raw_traffic.cast_signed(),
            flow_label: src.flow_label,
            hop_limit: src.hop_limit,
            traffic_class: src.traffic_class,
            reversible: src.reversible.cast_signed(),
            numb_path: src.numb_path,
            pkey: src.pkey,
            sl: src.sl,
            mtu_selector: src.mtu_selector,
            // A code of a few bits (`ibv_mtu`), in 32 bits in the kernel's structure.
            mtu: src.mtu as u8,
            rate_selector: src.rate_selector,
            rate: src.rate,
            packet_life_time_selector: src.packet_life_time_selector,
            packet_life_time: src.packet_life_time,
            preference: src.preference,
        };
        // SAFETY: `dst` is null or writable: the caller's contract, section Safety.
        unsafe { write(dst, record) }
    });
}

/// Converts a program's path record for the kernel.
///
/// # Safety
/// `src` must be null or readable, and `dst` null or writable, for one structure each.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    dst: *mut ib_user_path_rec,
    src: *const ibv_sa_path_rec,
) {
    entry::status("ibv_copy_path_rec_to_kern", || {
        // SAFETY: `src` is null or readable: the caller's contract, section Safety. Every member of
        // the GID union is 16 bytes, for which every bit pattern is valid.
        let (src, dgid, sgid) = unsafe {
            let src = read(src)?;
            (src, src.dgid.raw, src.sgid.raw)
        };
        let record = ib_user_path_rec {
            dgid,
            sgid,
            dlid: src.dlid,
            slid: src.slid,
            raw_traffic: src.raw_traffic.cast_unsigned(),
            flow_label: src.flow_label,
            reversible: src.reversible.cast_unsigned(),
            mtu: src.mtu.into(),
            pkey: src.pkey,
            hop_limit: src.hop_limit,
            traffic_class: src.traffic_class,
            numb_path: src.numb_path,
            sl: src.sl,
            mtu_selector: src.mtu_selector,
            rate_selector: src.rate_selector,
            rate: src.rate,
            packet_life_time_selector: src.packet_life_time_selector,
            packet_life_time: src.packet_life_time,
            preference: src.preference,
        };
        // SAFETY: `dst` is null or writable: the caller's contract, section Safety.
        unsafe { write(dst, record) }
    });
}
