//! Binding to addresses and their resolution.

use std::ffi::c_int;
use std::ptr;

use libc::sockaddr;

use super::id::id_of;
use super::route::update_addresses;
use super::sockaddr::{read_address, to_sockaddr};
use super::synchronous::complete;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

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
