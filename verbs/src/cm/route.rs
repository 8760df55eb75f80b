//! The addresses and the path in an `rdma_cm_id`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use urxe_driver::cm::id::Addresses;
use urxe_driver::cm::resolve::{Bound, Path};
use urxe_proto::ids::{Gid, PKey};

use super::devices::DeviceUse;
use super::id::id_of;
use super::sockaddr::to_sockaddr;
use crate::errno::Errno;
use crate::ffi::*;

/// The selector «exactly» of the values of a path record (15.2.5.16).
const EXACTLY: u8 = 2;

/// Returns the unspecified address of the source's family, for an identifier without destination.
fn unspecified_like(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Writes an identifier's addresses, GIDs and device to its C structure.
///
/// # Errors
/// If the device cannot be opened.
///
/// # Safety
/// `id` must be a live identifier.
pub(super) unsafe fn update_addresses(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    let identifier = unsafe { id_of(id) }?;
    let addresses = identifier.driver.addresses();
    // SAFETY: `id` is live: the caller's contract, section Safety. Only a raw pointer is made.
    let addr = unsafe { &raw mut (*id).route.addr };
    if let Some(source) = addresses.source {
        let destination = addresses
            .destination
            .unwrap_or_else(|| unspecified_like(source));
        // SAFETY: `addr` points into the live `id`, and no reference is created.
        unsafe {
            (&raw mut (*addr).src.storage).write(to_sockaddr(source));
            (&raw mut (*addr).dst.storage).write(to_sockaddr(destination));
        }
    }
    let Some(bound) = &addresses.bound else {
        return Ok(());
    };
    let mut inner = identifier.lock();
    if inner.device.is_none() {
        let device = DeviceUse::of(&bound.device)?;
        // SAFETY: `id` is live: the caller's contract, section Safety. Its members are written
        // through raw pointers.
        unsafe {
            (&raw mut (*id).verbs).write(device.context);
            (&raw mut (*id).pd).write(device.pd);
            (&raw mut (*id).port_num).write(Bound::PORT);
        }
        inner.device = Some(device);
    }
    // SAFETY: `addr` points into the live `id`, and no reference is created.
    unsafe { (&raw mut (*addr).addr.ibaddr).write(to_ib_addr(&addresses)) };
    Ok(())
}

fn to_ib_addr(addresses: &Addresses) -> rdma_ib_addr {
    let (source, destination) = addresses.gids();
    let to_gid = |gid: Option<Gid>| ibv_gid {
        raw: gid.unwrap_or_default().0,
    };
    rdma_ib_addr {
        sgid: to_gid(source),
        dgid: to_gid(destination),
        pkey: PKey::DEFAULT.0.to_be(),
    }
}

/// Writes the path to the peer to an identifier's C structure.
///
/// # Errors
/// `EINVAL` if there is none.
///
/// # Safety
/// `id` must be a live identifier.
pub(super) unsafe fn update_path(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: `id` is a live identifier: the caller's contract, section Safety.
    let identifier = unsafe { id_of(id) }?;
    let path = identifier.driver.path().ok_or(Errno(libc::EINVAL))?;
    let mut inner = identifier.lock();
    inner.paths = Box::new([to_path_rec(&path)]);
    // SAFETY: `id` is live: the caller's contract, section Safety. The path record is owned by the
    // identifier and lives as long.
    unsafe {
        (&raw mut (*id).route.path_rec).write(inner.paths.as_mut_ptr());
        (&raw mut (*id).route.num_paths).write(1);
    }
    Ok(())
}

fn to_path_rec(path: &Path) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: ibv_gid {
            raw: path.destination.0,
        },
        sgid: ibv_gid { raw: path.source.0 },
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKey::DEFAULT.0.to_be(),
        sl: path.sl,
        mtu_selector: EXACTLY,
        mtu: path.mtu as u8,
        rate_selector: EXACTLY,
        rate: path.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time,
        preference: 0,
    }
}
