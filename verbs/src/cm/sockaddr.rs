//! Conversion of socket addresses.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::errno::Errno;
use crate::ffi::*;

const AF_INET: sa_family_t = libc::AF_INET as sa_family_t;
const AF_INET6: sa_family_t = libc::AF_INET6 as sa_family_t;
/// The address family of GIDs, `infiniband/ib.h`.
const AF_IB: sa_family_t = 27;

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
