//! Multicast groups of UD queue pairs.

use std::ffi::c_int;

use urxe_proto::ids::Gid;

use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::qp::pair_of;

/// Reads a GID.
///
/// # Safety
/// `gid` must be null or point to a readable GID.
unsafe fn group(gid: *const ibv_gid) -> Result<Gid, Errno> {
    // SAFETY: `gid` is null or readable: the caller's contract, section Safety. Every member of the
    // union is 16 bytes, for which every bit pattern is valid.
    Ok(Gid(unsafe { entry::read(gid)?.raw }))
}

/// Attaches a queue pair to a multicast group. The LID is ignored: RoCE has none.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `gid` must be null or point to a
/// readable GID.
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    entry::status("ibv_attach_mcast", || {
        // SAFETY: `qp` is null or live, and `gid` null or readable: the caller's contract, section
        // Safety.
        let (pair, group) = unsafe { (pair_of(qp)?, group(gid)?) };
        Ok(pair.driver.attach(group)?)
    })
}

/// Detaches a queue pair from a multicast group.
///
/// # Safety
/// `qp` must be null or a live queue pair created by this library. `gid` must be null or point to a
/// readable GID.
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    entry::status("ibv_detach_mcast", || {
        // SAFETY: `qp` is null or live, and `gid` null or readable: the caller's contract, section
        // Safety.
        let (pair, group) = unsafe { (pair_of(qp)?, group(gid)?) };
        Ok(pair.driver.detach(group)?)
    })
}
