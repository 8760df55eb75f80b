//! Multicast groups.

use std::ffi::{c_int, c_void};

use libc::sockaddr;

use super::address::read_address;
use super::id::{complete, id_of};
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;
use crate::multicast::ibv_detach_mcast;

/// # Safety
/// The pointers are null, or an identifier of ours and an address.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let ours = id_of(id)?;
        let address = read_address(address)?;
        ours.driver
            .join(address, send_only, context.expose_provenance())?;
        complete(id)
    }
}

/// # Safety
/// The pointers are null, or an identifier of ours and an address.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    entry::status_or_minus_one("rdma_join_multicast", || {
        // SAFETY: the caller's promise.
        unsafe { join(id, addr, false, context) }
    })
}

/// # Safety
/// The pointers are null, or an identifier of ours and attributes.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    entry::status_or_minus_one("rdma_join_multicast_ex", || {
        // SAFETY: the caller's promise.
        let attr = unsafe { entry::read(mc_join_attr) }?;
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno(libc::ENOTSUP));
        }
        let all = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask != all || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            return Err(Errno(libc::EINVAL));
        }
        let send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        // SAFETY: the caller's promise.
        unsafe { join(id, attr.addr, send_only, context) }
    })
}

/// Leaves a group: waits until the program has acknowledged its events.
///
/// # Safety
/// The pointers are null, or an identifier of ours and an address.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    entry::status_or_minus_one("rdma_leave_multicast", || {
        // SAFETY: the caller's promise; the last makes no reference.
        let (ours, address, qp) = unsafe {
            (
                id_of(id)?,
                read_address(addr)?,
                (&raw const (*id).qp).read(),
            )
        };
        let group = ours.driver.leave(address)?;
        if !qp.is_null() && !group.send_only {
            let gid = ibv_gid { raw: group.gid().0 };
            // It is not attached where the program has not taken the event.
            // SAFETY: the identifier's queue pair, and a GID.
            unsafe { ibv_detach_mcast(qp, &raw const gid, 0) };
        }
        group.acks.wait();
        Ok(())
    })
}
