//! Addresses: binding, resolution, and their C representation.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use urxe_driver::cm::id::Addresses;
use urxe_driver::cm::resolve::{Bound, Path};
use urxe_proto::ids::{Gid, PKey};

use super::devices::DeviceUse;
use super::id::{complete, id_of};
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

const AF_INET: sa_family_t = libc::AF_INET as sa_family_t;
const AF_INET6: sa_family_t = libc::AF_INET6 as sa_family_t;
/// The address family of GIDs, `infiniband/ib.h`.
const AF_IB: sa_family_t = 27;

/// The selector «exactly» of the values of a path record (15.2.5.16).
const EXACTLY: u8 = 2;

/// Reads an IPv4 or IPv6 address.
///
/// # Errors
/// `EINVAL` if the pointer is null or the address family unknown; `ENODEV` for `AF_IB`, since RoCE
/// devices have no such addresses.
///
/// # Safety
/// `address` must be null or point to a readable address of the length of its family. It may be
/// unaligned.
pub(crate) unsafe fn read_address(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `address` is not null and points to an address of the length of its family, possibly
    // unaligned: the caller's contract, section Safety.
    unsafe {
        match (&raw const (*address).sa_family).read_unaligned() {
            AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            AF_IB => Err(Errno(libc::ENODEV)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }
}

/// Returns the C representation of an address.
pub(crate) fn to_sockaddr(address: SocketAddr) -> sockaddr_storage {
    let mut storage = sockaddr_storage::zeroed();
    let at = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            let mut addr = sockaddr_in::zeroed();
            addr.sin_family = AF_INET;
            addr.sin_port = v4.port().to_be();
            addr.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            // SAFETY: `sockaddr_storage` is large enough and aligned for every address type.
            unsafe { at.cast::<sockaddr_in>().write(addr) };
        }
        SocketAddr::V6(v6) => {
            let mut addr = sockaddr_in6::zeroed();
            addr.sin6_family = AF_INET6;
            addr.sin6_port = v6.port().to_be();
            addr.sin6_flowinfo = v6.flowinfo();
            addr.sin6_addr.s6_addr = v6.ip().octets();
            addr.sin6_scope_id = v6.scope_id();
            // SAFETY: `sockaddr_storage` is large enough and aligned for every address type.
            unsafe { at.cast::<sockaddr_in6>().write(addr) };
        }
    }
    storage
}

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

/// # Safety
/// `id` must be null or a live identifier, `addr` null or point to a readable address of the length
/// of its family.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    entry::status_or_minus_one("rdma_bind_addr", || {
        // SAFETY: `id` and `addr` are null or valid: the caller's contract, section Safety.
        unsafe { bind(id, addr) }
    })
}

/// Binds an identifier.
///
/// # Errors
/// See [`urxe_driver::cm::CmError`].
///
/// # Safety
/// `id` must be null or a live identifier, `addr` null or point to a readable address of the length
/// of its family.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: `id` and `addr` are null or valid: the caller's contract, section Safety.
    unsafe {
        id_of(id)?.driver.bind(read_address(addr)?)?;
        update_addresses(id)
    }
}

/// # Safety
/// `id` must be null or a live identifier. `src_addr` and `dst_addr` must be null or point to
/// readable addresses of the length of their families.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    entry::status_or_minus_one("rdma_resolve_addr", || {
        // SAFETY: `id`, `src_addr` and `dst_addr` are null or valid: the caller's contract, section
        // Safety.
        unsafe { resolve(id, src_addr, dst_addr) }
    })
}

/// Resolves an address. No packet is needed, so `timeout_ms` is ignored.
///
/// # Errors
/// See [`urxe_driver::cm::CmError`].
///
/// # Safety
/// `id` must be null or a live identifier. `src_addr` and `dst_addr` must be null or point to
/// readable addresses of the length of their families.
pub(super) unsafe fn resolve(
    id: *mut rdma_cm_id,
    src_addr: *const sockaddr,
    dst_addr: *const sockaddr,
) -> Result<(), Errno> {
    // SAFETY: `id`, `src_addr` and `dst_addr` are null or valid: the caller's contract, section
    // Safety.
    unsafe {
        let identifier = id_of(id)?;
        let destination = read_address(dst_addr)?;
        let source = match src_addr.is_null() {
            true => None,
            false => Some(read_address(src_addr)?),
        };
        identifier.driver.resolve_address(source, destination)?;
        // Applications read it before the event, as with librdmacm.
        (&raw mut (*id).route.addr.dst.storage).write(to_sockaddr(destination));
        complete(id)
    }
}

/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    entry::status_or_minus_one("rdma_resolve_route", || {
        // SAFETY: `id` is null or a live identifier, and `id_of` rejects null: the caller's
        // contract, section Safety.
        unsafe {
            id_of(id)?.driver.resolve_route()?;
            complete(id)
        }
    })
}

/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: `id` is not null and live: the caller's contract, section Safety. Only a raw pointer
    // is made.
    let at = (!id.is_null()).then(|| unsafe { &raw const (*id).route.addr.src.addr });
    // SAFETY: `at` points into the live `id`.
    unsafe { port("rdma_get_src_port", at) }
}

/// # Safety
/// `id` must be null or a live identifier.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: `id` is not null and live: the caller's contract, section Safety. Only a raw pointer
    // is made.
    let at = (!id.is_null()).then(|| unsafe { &raw const (*id).route.addr.dst.addr });
    // SAFETY: `at` points into the live `id`.
    unsafe { port("rdma_get_dst_port", at) }
}

/// Returns the port of an identifier's address, in network byte order.
///
/// # Safety
/// `address` must point to an address of a live identifier.
unsafe fn port(name: &'static str, address: Option<*const sockaddr>) -> u16 {
    entry::value(name, 0, || {
        // SAFETY: `address` is null or points into a live identifier: the caller's contract,
        // section Safety.
        let address = unsafe { read_address(address.unwrap_or(ptr::null())) };
        address.map_or(0, |address| address.port().to_be())
    })
}
