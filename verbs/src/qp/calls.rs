//! Calls of programs: attributes and destruction of queue pairs.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use urxe_proto::qp::{AttrMask, QpType};

use super::attributes::{attributes_from, mask_from, to_ibv_qp_attr, to_ibv_qp_cap};
use super::state::pair_of;
use crate::entry;
use crate::errno::{self, Errno};
use crate::ffi::*;
use crate::object;

/// Sets the state that the program reads in its `ibv_qp`.
///
/// # Safety
/// `qp` must be a live queue pair created by this library.
unsafe fn update_state(qp: *mut ibv_qp, state: ibv_qp_state) {
    // SAFETY: `qp` is live: the caller's contract, section Safety. `state` is a `u32` that is
    // aligned for an atomic, and this library accesses it only atomically; how the program reads it
    // is the program's responsibility.
    unsafe { AtomicU32::from_ptr(&raw mut (*qp).state) }.store(state, Ordering::Relaxed);
}

/// Removes the attributes that do not apply to a service. Programs give each half of an XRC
/// connection the attributes of both; as in the kernel, each half takes its own.
fn meaningful(service: QpType, mask: AttrMask) -> AttrMask {
    match service {
        QpType::XrcIni => mask - (AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER),
        QpType::XrcTgt => {
            mask - (AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY)
        }
        _ => mask,
    }
}

/// Changes attributes of a queue pair.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `attr` must be null or point to
/// readable attributes.
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    entry::status("ibv_modify_qp", || {
        // SAFETY: `qp` is null or live, and `attr` null or readable: the caller's contract, section
        // Safety.
        let (pair, attr) = unsafe { (pair_of(qp)?, entry::read(attr)?) };
        let mask = meaningful(pair.driver.service(), mask_from(attr_mask)?);
        let driver_attr = attributes_from(&attr, mask)?;
        pair.driver.modify(&driver_attr, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: `qp` is non-null, since `pair_of` accepted it, and live: the caller's
            // contract, section Safety.
            unsafe { update_state(qp, attr.qp_state) };
        }
        Ok(())
    })
}

/// Reads all attributes of a queue pair, whatever the mask asks for.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `attr` and `init_attr` must be
/// null or point to writable attributes.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    entry::status("ibv_query_qp", || {
        // SAFETY: `qp` is null or a live queue pair: the caller's contract, section Safety.
        let pair = unsafe { pair_of(qp) }?;
        let cap = pair.driver.cap();
        let ibv_attr = to_ibv_qp_attr(&pair.driver.attributes(), &cap);
        // SAFETY: `qp` is non-null, since `pair_of` accepted it, and live: the caller's contract,
        // section Safety. These members do not change after creation, and are read without a
        // reference.
        let (qp_context, send_cq, recv_cq, srq, qp_type) = unsafe {
            (
                (&raw const (*qp).qp_context).read(),
                (&raw const (*qp).send_cq).read(),
                (&raw const (*qp).recv_cq).read(),
                (&raw const (*qp).srq).read(),
                (&raw const (*qp).qp_type).read(),
            )
        };
        let init = ibv_qp_init_attr {
            qp_context,
            send_cq,
            recv_cq,
            srq,
            cap: to_ibv_qp_cap(&cap),
            qp_type,
            sq_sig_all: c_int::from(pair.driver.signals_all()),
        };
        // SAFETY: `qp` is non-null and live, and `attr` and `init_attr` are null or writable: the
        // caller's contract, section Safety.
        unsafe {
            update_state(qp, ibv_attr.qp_state);
            entry::write(attr, ibv_attr)?;
            entry::write(init_attr, init)
        }
    })
}

/// Implements `modify_qp_rate_limit` of a context.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `attr` must be null or point to
/// readable attributes.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    entry::status("ibv_modify_qp_rate_limit", || {
        // SAFETY: `qp` is null or live, and `attr` null or readable: the caller's contract, section
        // Safety.
        let (pair, attr) = unsafe { (pair_of(qp)?, entry::read(attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // `typical_pkt_sz` is ignored: the limit applies to actual packet sizes.
        Ok(pair.driver.limit_rate(attr.rate_limit, attr.max_burst_sz)?)
    })
}

/// Returns whether data is written in order, so that a program may poll memory instead of waiting
/// for the completion.
///
/// Always 0: within a packet the processor may copy bytes in any order.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    entry::value("ibv_query_qp_data_in_order", 0, || {
        // SAFETY: `qp` is null or a live queue pair: the caller's contract, section Safety.
        if let Err(error) = unsafe { pair_of(qp) } {
            errno::set(error);
        }
        0
    })
}

/// Destroys a queue pair.
///
/// Returns `EBUSY` while it is attached to a multicast group, or a flow steers frames to it. Waits
/// until the program has acknowledged all events of it that it has received.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. No other call may use it now or
/// later.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    entry::status("ibv_destroy_qp", || {
        // SAFETY: `qp` is null or a live queue pair: the caller's contract, section Safety.
        let pair = unsafe { pair_of(qp) }?;
        if !pair.driver.groups().is_empty() {
            return Err(Errno(libc::EBUSY));
        }
        pair.flows.check_none()?;
        pair.destroy();
        // SAFETY: `qp` is live, and no other call uses it: the caller's contract, section Safety.
        // After `destroy` no event refers to it.
        drop(unsafe { object::free(qp.cast::<ibv_qp_ex>()) });
        Ok(())
    })
}
