//! Multicast groups of datagram queue pairs.

use std::ffi::c_int;

use urxe_proto::ids::Gid;

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::qp::pair_of;

/// # Safety
/// `gid` is null or good for one.
unsafe fn group(gid: *const ibv_gid) -> Result<Gid, Errno> {
    // SAFETY: the caller's promise; every member of the union is 16 bytes of anything.
    Ok(Gid(unsafe { entry::read(gid)?.raw }))
}

/// The LID is not looked at: RoCE has none.
///
/// # Safety
/// The pointers are null, or a queue pair of ours and a GID.
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    entry::status("ibv_attach_mcast", || {
        // SAFETY: the caller's promise.
        let (pair, group) = unsafe { (pair_of(qp)?, group(gid)?) };
        Ok(pair.driver.attach(group)?)
    })
}

/// # Safety
/// The pointers are null, or a queue pair of ours and a GID.
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    entry::status("ibv_detach_mcast", || {
        // SAFETY: the caller's promise.
        let (pair, group) = unsafe { (pair_of(qp)?, group(gid)?) };
        Ok(pair.driver.detach(group)?)
    })
}
