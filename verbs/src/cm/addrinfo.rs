//! Name resolution by the C library's resolver.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};

use super::addrinfo_list::{AddrinfoList, copy, free_list};
use super::id::{Resolving, id_of};
use super::synchronous::complete;
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

/// The error of a name resolution.
enum Failure {
    /// A code of the C library's resolver, returned unchanged.
    Resolver(c_int),
    Errno(Errno),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

/// Returns the resolver's hints for the application's hints.
fn resolver_hints(hints: &rdma_addrinfo) -> addrinfo {
    let mut out = addrinfo::zeroed();
    let given = |flag| hints.ai_flags & flag != 0;
    if given(RAI_PASSIVE) {
        out.ai_flags |= libc::AI_PASSIVE;
    }
    if given(RAI_NUMERICHOST) {
        out.ai_flags |= libc::AI_NUMERICHOST;
    }
    out.ai_family = hints.ai_family;
    out.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    out.ai_protocol = match (hints.ai_port_space.cast_unsigned(), out.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_IPOIB | RDMA_PS_UDP, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    out
}

/// Calls the resolver, and copies the first result to `found`.
///
/// # Safety
/// `node` and `service` must be null or C strings.
unsafe fn resolve_first(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    found: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    let resolver_hints = hints.map(resolver_hints);
    let resolver_hints = resolver_hints.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut answer = ptr::null_mut();
    // SAFETY: `node` and `service` are null or C strings: the caller's contract, section Safety.
    let code = unsafe { libc::getaddrinfo(node, service, resolver_hints, &raw mut answer) };
    if code != 0 {
        return Err(Failure::Resolver(code));
    }
    // SAFETY: on success the resolver returns at least one entry, valid until it is freed below.
    let copied = unsafe { copy_result(&*answer, hints, found) };
    // SAFETY: `answer` is the resolver's list and is freed once.
    unsafe { libc::freeaddrinfo(answer) };
    Ok(copied?)
}

/// # Safety
/// `answer` must be an entry returned by the resolver.
unsafe fn copy_result(
    answer: &addrinfo,
    hints: Option<&rdma_addrinfo>,
    found: &mut rdma_addrinfo,
) -> Result<(), Errno> {
    let hinted =
        |member: fn(&rdma_addrinfo) -> c_int| hints.map(member).filter(|&value| value != 0);
    found.ai_qp_type = hinted(|hints| hints.ai_qp_type).unwrap_or(match answer.ai_socktype {
        libc::SOCK_STREAM => IBV_QPT_RC.cast_signed(),
        libc::SOCK_DGRAM => IBV_QPT_UD.cast_signed(),
        _ => 0,
    });
    found.ai_port_space = hinted(|hints| hints.ai_port_space).unwrap_or(match answer.ai_protocol {
        libc::IPPROTO_TCP => RDMA_PS_TCP.cast_signed(),
        libc::IPPROTO_UDP => RDMA_PS_UDP.cast_signed(),
        _ => 0,
    });
    found.ai_family = answer.ai_family;
    let passive = answer.ai_flags & libc::AI_PASSIVE != 0;
    let name = match answer.ai_canonname.is_null() {
        true => ptr::null_mut(),
        // SAFETY: `ai_canonname` is not null, and a C string of the resolver: the caller's
        // contract, section Safety.
        false => unsafe { libc::strdup(answer.ai_canonname) },
    };
    // SAFETY: `ai_addr` points to `ai_addrlen` bytes: `answer` is a result of the resolver: the
    // caller's contract, section Safety.
    let address = unsafe { copy(answer.ai_addr.cast(), answer.ai_addrlen as usize) }?;
    let address = address.cast::<sockaddr>();
    if passive {
        found.ai_flags = RAI_PASSIVE;
        found.ai_src_canonname = name;
        found.ai_src_addr = address;
        found.ai_src_len = answer.ai_addrlen;
    } else {
        found.ai_dst_canonname = name;
        found.ai_dst_addr = address;
        found.ai_dst_len = answer.ai_addrlen;
    }
    Ok(())
}

/// # Safety
/// `from` must point to `len` readable bytes, or `len` must be 0.
unsafe fn copy_address(
    from: *const sockaddr,
    len: socklen_t,
    to: &mut *mut sockaddr,
    to_len: &mut socklen_t,
) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if from.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `from` points to `len` readable bytes: the caller's contract, section Safety.
    *to = unsafe { copy(from.cast(), len as usize) }?.cast();
    *to_len = len;
    Ok(())
}

/// # Safety
/// `node` and `service` must be null or C strings. `hints` must be null or valid for reading an
/// `rdma_addrinfo` whose addresses have the lengths that it states.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<AddrinfoList, Failure> {
    let hints = match hints.is_null() {
        true => None,
        // SAFETY: `hints` is not null and readable: the caller's contract, section Safety.
        false => Some(unsafe { entry::read(hints) }?),
    };
    if hints.is_none() && node.is_null() && service.is_null() {
        return Err(Errno(libc::EINVAL).into());
    }
    if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
        // A subnet administrator would have to be queried, and RoCE has none.
        return Err(Errno(libc::EOPNOTSUPP).into());
    }
    let mut found = AddrinfoList::new()?;
    if !node.is_null() || !service.is_null() {
        // SAFETY: `node` and `service` are null or C strings: the caller's contract, section
        // Safety.
        unsafe { resolve_first(node, service, hints.as_ref(), found.entry()) }?;
    }
    let Some(hints) = hints else {
        return Ok(found);
    };
    let entry = found.entry();
    if node.is_null() && service.is_null() {
        entry.ai_flags = hints.ai_flags;
        entry.ai_family = hints.ai_family;
        entry.ai_qp_type = hints.ai_qp_type;
        entry.ai_port_space = hints.ai_port_space;
        let (from, len) = (hints.ai_dst_addr, hints.ai_dst_len);
        // SAFETY: `ai_dst_addr` points to `ai_dst_len` readable bytes: the caller's contract,
        // section Safety.
        unsafe { copy_address(from, len, &mut entry.ai_dst_addr, &mut entry.ai_dst_len) }?;
    }
    if entry.ai_src_len == 0 {
        let (from, len) = (hints.ai_src_addr, hints.ai_src_len);
        // SAFETY: `ai_src_addr` points to `ai_src_len` readable bytes: the caller's contract,
        // section Safety.
        unsafe { copy_address(from, len, &mut entry.ai_src_addr, &mut entry.ai_src_len) }?;
    }
    Ok(found)
}

/// Returns 0, or -1 with `errno`, or an error code of the C library's resolver.
///
/// # Safety
/// `node` and `service` must be null or C strings. `hints` must be null or valid for reading an
/// `rdma_addrinfo` whose addresses have the lengths that it states. `res` must be null or valid for
/// writing a pointer.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    entry::number("rdma_getaddrinfo", || {
        if res.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `node` and `service` are null or C strings, and `hints` is null or valid: the
        // caller's contract, section Safety.
        match unsafe { find(node, service, hints) } {
            // SAFETY: `res` is null or valid for writing a pointer: the caller's contract, section
            // Safety.
            Ok(found) => unsafe { entry::write(res, found.into_raw()) }.map(|()| 0),
            Err(Failure::Resolver(code)) => Ok(code),
            Err(Failure::Errno(error)) => Err(error),
        }
    })
}

/// # Safety
/// `res` must be null, or returned by [`rdma_getaddrinfo`] and not be freed yet.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    entry::value("rdma_freeaddrinfo", (), || {
        // SAFETY: `res` is null or a list that is not freed yet: the caller's contract, section
        // Safety.
        unsafe { free_list(res) };
    });
}

/// Resolves a name and reports the end by an event; [`rdma_query_addrinfo`] returns the result.
///
/// `EBUSY` until the last result was fetched.
///
/// # Safety
/// `id` must be null or a live identifier, `node` and `service` null or C strings. `hints` must be
/// null or valid for reading an `rdma_addrinfo` whose addresses have the lengths that it states.
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    entry::status_or_minus_one("rdma_resolve_addrinfo", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety.
        let identifier = unsafe { id_of(id) }?;
        if !matches!(identifier.lock().addrinfo, Resolving::No) {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: `node` and `service` are null or C strings, and `hints` is null or valid: the
        // caller's contract, section Safety.
        let found = unsafe { find(node, service, hints) }.map_err(|failure| match failure {
            Failure::Errno(error) => error,
            Failure::Resolver(libc::EAI_SYSTEM) => std::io::Error::last_os_error().into(),
            Failure::Resolver(_) => Errno(libc::ENOENT),
        })?;
        identifier.lock().addrinfo = Resolving::Done(found);
        identifier.driver.address_info_resolved();
        // SAFETY: `id` is a live identifier, as `id_of` found: the caller's contract, section
        // Safety.
        unsafe { complete(id) }
    })
}

/// # Safety
/// `id` must be null or a live identifier, `info` null or valid for writing a pointer.
pub unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    entry::status_or_minus_one("rdma_query_addrinfo", || {
        // SAFETY: `id` is null or a live identifier: the caller's contract, section Safety.
        let identifier = unsafe { id_of(id) }?;
        if info.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        match std::mem::take(&mut identifier.lock().addrinfo) {
            Resolving::No => Err(Errno(libc::ENOENT)),
            // SAFETY: `info` is valid for writing a pointer: the caller's contract, section Safety.
            Resolving::Done(found) => unsafe { entry::write(info, found.into_raw()) },
        }
    })
}
