//! Options of identifiers.

use std::ffi::{c_int, c_void};
use std::mem::size_of;

use urxe_driver::cm::resolve::Path;
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;

use super::id::{Identifier, id_of};
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

/// The flags of the primary path.
const PRIMARY: u32 = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;

/// The value bits of `mtu`, `rate` and `packetlifetime`; the others are the selector.
const VALUE: u8 = 0x3f;

/// # Safety
/// `id` must be null or a live identifier, `optval` null or point to `optlen` readable bytes.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    entry::status_or_minus_one("rdma_set_option", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety.
        let id = unsafe { id_of(id) }?;
        if optval.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `optval` is not null and points to `optlen` readable bytes: the caller's
        // contract, section Safety.
        unsafe {
            match (level, optname) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
                    id.driver.set_type_of_service(value(optval, optlen)?);
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                    let reuse = value::<c_int>(optval, optlen)? != 0;
                    id.driver.set_reuse_address(reuse)?;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                    id.driver
                        .set_v6_only(value::<c_int>(optval, optlen)? != 0)?;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                    id.driver.set_ack_timeout(value(optval, optlen)?)?;
                }
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => set_path(id, optval, optlen)?,
                _ => return Err(Errno(libc::ENOSYS)),
            }
        }
        Ok(())
    })
}

/// # Safety
/// `optval` must point to `optlen` readable bytes. Every bit pattern must be a valid `T`.
unsafe fn value<T: Copy>(optval: *const c_void, optlen: usize) -> Result<T, Errno> {
    if optlen != size_of::<T>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `optval` points to `optlen` readable bytes, the size of `T`, and every bit pattern is
    // a valid `T`: the caller's contract, section Safety.
    Ok(unsafe { optval.cast::<T>().read_unaligned() })
}

/// # Safety
/// `optval` must point to `optlen` readable bytes.
unsafe fn set_path(id: &Identifier, optval: *const c_void, optlen: usize) -> Result<(), Errno> {
    let count = optlen / size_of::<ibv_path_data>();
    if !optlen.is_multiple_of(size_of::<ibv_path_data>()) {
        return Err(Errno(libc::EINVAL));
    }
    let paths = optval.cast::<ibv_path_data>();
    // SAFETY: `index` is below `count`, so the element is within the `optlen` readable bytes: the
    // caller's contract, section Safety.
    let mut all = (0..count).map(|index| unsafe { paths.add(index).read_unaligned() });
    let primary = all.find(|path| path.flags == PRIMARY);
    let path = path_from(&primary.ok_or(Errno(libc::EINVAL))?.path)?;
    id.driver.set_path(path)?;
    Ok(())
}

fn path_from(record: &ibv_path_record) -> Result<Path, Errno> {
    // SAFETY: every member of the unions is 16 bytes, and every bit pattern is valid.
    let (source, destination) = unsafe { (record.sgid.raw, record.dgid.raw) };
    let [.., hop_limit] = record.flowlabel_hoplimit.to_ne_bytes();
    Ok(Path {
        source: Gid(source),
        destination: Gid(destination),
        mtu: Mtu::from_number(record.mtu & VALUE).ok_or(Errno(libc::EINVAL))?,
        hop_limit,
        traffic_class: record.tclass,
        flow_label: u32::from_be(record.flowlabel_hoplimit) >> 8 & 0xf_ffff,
        sl: (u16::from_be(record.qosclass_sl) & 0xf) as u8,
        rate: record.rate & VALUE,
        packet_life_time: record.packetlifetime & VALUE,
    })
}
