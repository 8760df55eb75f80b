//! Names to addresses, by the C library's resolver.

use std::ffi::{c_char, c_int};
use std::mem::size_of;
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};

use super::id::{Resolving, complete, id_of};
use crate::entry;
use crate::errno::Errno;
use crate::ffi::*;

/// Why there is no address.
enum Failure {
    /// The resolver's code, which is returned as it is.
    Resolver(c_int),
    Errno(Errno),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

/// What was found; freed when it is dropped.
pub(super) struct Found(*mut rdma_addrinfo);

// SAFETY: memory of its own, that any thread may free.
unsafe impl Send for Found {}

impl Found {
    /// Gives it to the program, which frees it.
    pub fn give(self) -> *mut rdma_addrinfo {
        let given = self.0;
        std::mem::forget(self);
        given
    }

    /// A list of one entry, of zeros.
    fn new() -> Result<Found, Errno> {
        Ok(Found(allocate(size_of::<rdma_addrinfo>())?.cast()))
    }

    fn entry(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: allocated with that size and zeroed, which is a value of it; nobody else has it.
        unsafe { &mut *self.0 }
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: made here, and given to nobody.
        unsafe { free_list(self.0) };
    }
}

/// Zeros from the C library: programs have been seen to put memory of their own into these
/// structures, and all of it is freed alike.
fn allocate(len: usize) -> Result<*mut u8, Errno> {
    // SAFETY: any size may be asked for.
    let memory = unsafe { libc::calloc(1, len) };
    match memory.is_null() {
        true => Err(Errno(libc::ENOMEM)),
        false => Ok(memory.cast()),
    }
}

/// # Safety
/// `from` is good for `len` bytes.
unsafe fn copy(from: *const u8, len: usize) -> Result<*mut u8, Errno> {
    let memory = allocate(len)?;
    // SAFETY: the caller's promise, and just allocated.
    unsafe { ptr::copy_nonoverlapping(from, memory, len) };
    Ok(memory)
}

/// # Safety
/// `list` is null, or a list whose members are null or allocated with the C library.
unsafe fn free_list(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: the caller's promise.
        unsafe {
            let entry = list.read();
            libc::free(entry.ai_connect);
            libc::free(entry.ai_route);
            libc::free(entry.ai_src_canonname.cast());
            libc::free(entry.ai_dst_canonname.cast());
            libc::free(entry.ai_src_addr.cast());
            libc::free(entry.ai_dst_addr.cast());
            libc::free(list.cast());
            list = entry.ai_next;
        }
    }
}

/// The resolver's hints for those of the program.
fn resolver_hints(hints: &rdma_addrinfo) -> addrinfo {
    let mut ours = addrinfo::zeroed();
    let given = |flag| hints.ai_flags & flag != 0;
    if given(RAI_PASSIVE) {
        ours.ai_flags |= libc::AI_PASSIVE;
    }
    if given(RAI_NUMERICHOST) {
        ours.ai_flags |= libc::AI_NUMERICHOST;
    }
    ours.ai_family = hints.ai_family;
    ours.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    ours.ai_protocol = match (hints.ai_port_space.cast_unsigned(), ours.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_IPOIB | RDMA_PS_UDP, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    ours
}

/// Asks the resolver, and takes its first answer.
///
/// # Safety
/// `node` and `service` are null or C strings.
unsafe fn ask(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    found: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    let ours = hints.map(resolver_hints);
    let ours = ours.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut answer = ptr::null_mut();
    // SAFETY: the caller's promise.
    let code = unsafe { libc::getaddrinfo(node, service, ours, &raw mut answer) };
    if code != 0 {
        return Err(Failure::Resolver(code));
    }
    // SAFETY: the resolver gives at least one entry, which is good until it is freed.
    let taken = unsafe { take(&*answer, hints, found) };
    // SAFETY: freed once.
    unsafe { libc::freeaddrinfo(answer) };
    Ok(taken?)
}

/// # Safety
/// `answer` is an entry of the resolver's.
unsafe fn take(
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
        // SAFETY: a C string of the resolver's.
        false => unsafe { libc::strdup(answer.ai_canonname) },
    };
    // SAFETY: as above.
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
/// `from` is good for `len` bytes, or `len` is 0.
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
    // SAFETY: the caller's promise.
    *to = unsafe { copy(from.cast(), len as usize) }?.cast();
    *to_len = len;
    Ok(())
}

/// # Safety
/// The pointers are null, or C strings and hints.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<Found, Failure> {
    let hints = match hints.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { entry::read(hints) }?),
    };
    if hints.is_none() && node.is_null() && service.is_null() {
        return Err(Errno(libc::EINVAL).into());
    }
    if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
        // A subnet administrator would have to be asked, and RoCE has none.
        return Err(Errno(libc::EOPNOTSUPP).into());
    }
    let mut found = Found::new()?;
    if !node.is_null() || !service.is_null() {
        // SAFETY: as above.
        unsafe { ask(node, service, hints.as_ref(), found.entry()) }?;
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
        // SAFETY: as above.
        unsafe { copy_address(from, len, &mut entry.ai_dst_addr, &mut entry.ai_dst_len) }?;
    }
    if entry.ai_src_len == 0 {
        let (from, len) = (hints.ai_src_addr, hints.ai_src_len);
        // SAFETY: as above.
        unsafe { copy_address(from, len, &mut entry.ai_src_addr, &mut entry.ai_src_len) }?;
    }
    Ok(found)
}

/// Returns 0, or -1 and sets `errno`, or a code of the C library's resolver.
///
/// # Safety
/// The pointers are null, or C strings, hints, and room for the result.
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
        // SAFETY: the caller's promise.
        match unsafe { find(node, service, hints) } {
            // SAFETY: as above.
            Ok(found) => unsafe { entry::write(res, found.give()) }.map(|()| 0),
            Err(Failure::Resolver(code)) => Ok(code),
            Err(Failure::Errno(error)) => Err(error),
        }
    })
}

/// # Safety
/// `res` is null or from [`rdma_getaddrinfo`], and not freed yet.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    entry::value("rdma_freeaddrinfo", (), || {
        // SAFETY: the caller's promise.
        unsafe { free_list(res) };
    });
}

/// The same, told by an event; the result is fetched with [`rdma_query_addrinfo`]. `EBUSY` until the
/// last one was.
///
/// # Safety
/// The pointers are null, or an identifier of ours, C strings and hints.
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    entry::status_or_minus_one("rdma_resolve_addrinfo", || {
        // SAFETY: the caller's promise.
        let ours = unsafe { id_of(id) }?;
        if !matches!(ours.kept().addrinfo, Resolving::No) {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: as above.
        let found = unsafe { find(node, service, hints) }.map_err(|failure| match failure {
            Failure::Errno(error) => error,
            Failure::Resolver(libc::EAI_SYSTEM) => std::io::Error::last_os_error().into(),
            Failure::Resolver(_) => Errno(libc::ENOENT),
        })?;
        ours.kept().addrinfo = Resolving::Done(found);
        ours.driver.address_info_resolved();
        // SAFETY: as above.
        unsafe { complete(id) }
    })
}

/// # Safety
/// The pointers are null, or an identifier of ours and room for the result.
pub unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    entry::status_or_minus_one("rdma_query_addrinfo", || {
        // SAFETY: the caller's promise.
        let ours = unsafe { id_of(id) }?;
        if info.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        match std::mem::take(&mut ours.kept().addrinfo) {
            Resolving::No => Err(Errno(libc::ENOENT)),
            // SAFETY: as above.
            Resolving::Done(found) => unsafe { entry::write(info, found.give()) },
        }
    })
}
