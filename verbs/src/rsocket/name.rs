//! Socket names: addresses with ports.

use std::ffi::c_int;
use std::net::SocketAddr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use super::lookup::socket_of;
use crate::cm::sockaddr::{read_address, to_sockaddr};
use crate::entry;
use crate::errno::{self, Errno};
use urxe_rsockets::Socket;

/// Reads an address of `len` bytes.
///
/// # Errors
/// `EFAULT` if it is null, `EINVAL` if it is too short, `EAFNOSUPPORT` for another family.
///
/// # Safety
/// `address` must be null or point to `len` readable bytes.
pub(super) unsafe fn read_name(
    address: *const sockaddr,
    len: socklen_t,
) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let len = len as usize;
    if len < size_of::<libc::sa_family_t>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `address` is not null and points to at least the bytes of the family, as checked: the
    // caller's contract, section Safety.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    let needed = match c_int::from(family) {
        libc::AF_INET => size_of::<sockaddr_in>(),
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    match len < needed {
        true => Err(Errno(libc::EINVAL)),
        // SAFETY: `address` points to `len` readable bytes, enough for the family, as checked: the
        // caller's contract, section Safety.
        false => unsafe { read_address(address) },
    }
}

/// Writes an address, truncated to the available room, and its full length.
///
/// # Errors
/// `EINVAL` if `len` is null.
///
/// # Safety
/// `len` must be null or valid for reading and writing, and `to` null or valid for writing `*len`
/// bytes.
pub(super) unsafe fn write_name(
    address: SocketAddr,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    let whole = match address {
        SocketAddr::V4(_) => size_of::<sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<sockaddr_in6>(),
    };
    let storage = to_sockaddr(address);
    // SAFETY: `len` is null or valid, and `to` is null or valid for writing `*len` bytes: the
    // caller's contract, section Safety. The copy is bytewise and may be partial.
    unsafe {
        let room = entry::read(len)? as usize;
        if !to.is_null() {
            let from = (&raw const storage).cast::<u8>();
            to.cast::<u8>()
                .copy_from_nonoverlapping(from, room.min(whole));
        }
        entry::write(len, whole as socklen_t)
    }
}

/// # Safety
/// `addrlen` must be null or valid for reading and writing, and `addr` null or valid for writing as
/// many bytes as `addrlen` says.
pub unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    entry::status_or_minus_one("rgetpeername", || match socket_of(socket)? {
        Socket::Stream(stream) => {
            let peer = stream.peer_address().ok_or(Errno(libc::ENOTCONN))?;
            // SAFETY: `addr` and `addrlen` are null or valid: the caller's contract, section
            // Safety.
            unsafe { write_name(peer, addr, addrlen) }
        }
        // SAFETY: `addr` and `addrlen` are null or valid: the caller's contract, section Safety.
        Socket::Datagram(_) => unsafe { errno::of_call(libc::getpeername(socket, addr, addrlen)) },
    })
}

/// # Safety
/// `addrlen` must be null or valid for reading and writing, and `addr` null or valid for writing as
/// many bytes as `addrlen` says.
pub unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    entry::status_or_minus_one("rgetsockname", || match socket_of(socket)? {
        // SAFETY: `addr` and `addrlen` are null or valid: the caller's contract, section Safety.
        Socket::Stream(stream) => unsafe { write_name(stream.local_address(), addr, addrlen) },
        // SAFETY: `addr` and `addrlen` are null or valid: the caller's contract, section Safety.
        Socket::Datagram(_) => unsafe { errno::of_call(libc::getsockname(socket, addr, addrlen)) },
    })
}
