//! Multicast groups.

use std::ffi::{c_int, c_void};

use libc::sockaddr;

use super::id::id_of;
use super::sockaddr::read_address;
use super::synchronous::complete;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::multicast::ibv_detach_mcast;

/// # Safety
/// `id` must be null or a live identifier, `address` null or point to a readable address of the
/// length of its family.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: `id` and `address` are null or valid: the caller's contract, section Safety.
    unsafe {
        let identifier = id_of(id)?;
        let address = read_address(address)?;
        identifier
            .driver
            .join(address, send_only, context.expose_provenance())?;
        complete(id)
    }
}

/// # Safety
/// `id` must be null or a live identifier, `addr` null or point to a readable address of the length
/// of its family.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    entry::status_or_minus_one("rdma_join_multicast", || {
        // SAFETY: `id` and `addr` are null or valid: the caller's contract, section Safety.
        unsafe { join(id, addr, false, context) }
    })
}

/// # Safety
/// `id` must be null or a live identifier, `mc_join_attr` null or valid for reading, with an `addr`
/// that is null or points to a readable address of the length of its family.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    entry::status_or_minus_one("rdma_join_multicast_ex", || {
        // SAFETY: `mc_join_attr` is null or readable: the caller's contract, section Safety.
        let attr = unsafe { entry::read(mc_join_attr) }?;
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno(libc::ENOTSUP));
        }
        let all = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask != all || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            return Err(Errno(libc::EINVAL));
        }
        let send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        // SAFETY: `id` and `attr.addr` are null or valid: the caller's contract, section Safety.
        unsafe { join(id, attr.addr, send_only, context) }
    })
}

/// Leaves a group, after the application has acknowledged the group's events.
///
/// # Safety
/// `id` must be null or a live identifier, `addr` null or point to a readable address of the length
/// of its family.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    entry::status_or_minus_one("rdma_leave_multicast", || {
        // SAFETY: `id` and `addr` are null or valid: the caller's contract, section Safety. `id_of`
        // rejects null before `qp` is read through a raw pointer.
        let (identifier, address, qp) = unsafe {
            (
                id_of(id)?,
                read_address(addr)?,
                (&raw const (*id).qp).read(),
            )
        };
        let group = identifier.driver.leave(address)?;
        if !qp.is_null() && !group.send_only {
            let gid = ibv_gid { raw: group.gid().0 };
            // Before the application has taken the event, the queue pair is not attached.
            // SAFETY: `qp` is the identifier's live queue pair, and `gid` a local variable.
            unsafe { ibv_detach_mcast(qp, &raw const gid, 0) };
        }
        group.acks.wait();
        Ok(())
    })
}
