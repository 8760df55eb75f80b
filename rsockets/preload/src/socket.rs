//! Creating and connecting sockets, with their addresses and options.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use crate::call::{next, real, sockets};
use crate::config;
use crate::create::make_rsocket;
use crate::descriptor::rfcntl;
use crate::fork;
use crate::kernel::{close_descriptor, place};
use crate::next::preserve_errno;
use crate::rdma;
use crate::side::{Side, copy};
use crate::table::{self, Deferred, Kind};

real! {
    socket bind listen accept accept4 connect shutdown getpeername getsockname setsockopt getsockopt
}

sockets! {
    by table::find;
    fn bind(address: *const sockaddr, len: socklen_t) -> c_int => RBIND;
    fn listen(backlog: c_int) -> c_int => RLISTEN;
    fn shutdown(how: c_int) -> c_int => RSHUTDOWN;
    fn getpeername(address: *mut sockaddr, len: *mut socklen_t) -> c_int => RGETPEERNAME;
    fn getsockname(address: *mut sockaddr, len: *mut socklen_t) -> c_int => RGETSOCKNAME;
    fn setsockopt(level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int => RSETSOCKOPT;
    fn getsockopt(level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int => RGETSOCKOPT;
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let of_ip = matches!(domain, libc::AF_INET | libc::AF_INET6);
    if of_ip && !rdma::is_inside() && config::wants(domain, kind & !flags, protocol) {
        let made = preserve_errno(|| make(domain, kind, protocol));
        if let Some(made) = made {
            return made;
        }
    }
    // SAFETY: the C library's function has this type and no further preconditions.
    unsafe { next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int) }
}

/// Creates a replacement for a socket, if one is wanted and possible.
fn make(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    let close_on_exec = kind & libc::SOCK_CLOEXEC != 0;
    if fork::defers(kind, protocol) {
        // SAFETY: the C library's function has this type and no further preconditions.
        let made = unsafe { next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int) };
        return hold(Kind::Deferred(Deferred::Fresh), made, close_on_exec);
    }
    let rsocket = make_rsocket(domain, kind, protocol)?;
    hold(Kind::Rsocket, rsocket, close_on_exec)
}

/// Allocates a descriptor for a target. If there is none, closes the target.
fn hold(kind: Kind, target: c_int, close_on_exec: bool) -> Option<c_int> {
    if target < 0 {
        return None;
    }
    let number = place(close_on_exec);
    if number < 0 {
        match kind {
            Kind::Rsocket => rdma::close(target),
            // SAFETY: the number is not known outside this function.
            _ => unsafe {
                close_descriptor(target);
            },
        }
        return None;
    }
    table::insert_as(number, kind, target);
    Some(number)
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept(
    number: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are the caller's under the same contract.
    unsafe { accept4(number, address, len, 0) }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept4(
    number: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    type Accept = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    let target = table::find(number);
    let Some(listener) = target.as_ref().filter(|target| target.is_rsocket()) else {
        let defers =
            target.as_ref().map(|target| target.kind()) == Some(Kind::Deferred(Deferred::Fresh));
        let number = target.map_or(number, |target| target.target());
        // SAFETY: the C library's function has this type, and the arguments are the caller's under
        // the same contract.
        let accepted = unsafe {
            next!(
                accept4(
                    number: c_int,
                    address: *mut sockaddr,
                    len: *mut socklen_t,
                    flags: c_int,
                ) -> c_int
            )
        };
        if !defers || accepted < 0 {
            return accepted;
        }
        let close_on_exec = flags & libc::SOCK_CLOEXEC != 0;
        let held = hold(Kind::Deferred(Deferred::Accepted), accepted, close_on_exec);
        return held.unwrap_or(-1);
    };
    // SAFETY: `raccept` has this type, and the arguments are the caller's under the same contract.
    let accepted = unsafe {
        let Some(function) = rdma::RACCEPT.get::<Accept>() else {
            return -1;
        };
        rdma::inside(|| function(listener.target(), address, len))
    };
    if accepted < 0 {
        return accepted;
    }
    // An accepted kernel socket does not inherit its listener's flags.
    let status = match flags & libc::SOCK_NONBLOCK {
        0 => 0,
        _ => libc::O_NONBLOCK,
    };
    rfcntl(accepted, libc::F_SETFL, status.into());
    hold(Kind::Rsocket, accepted, flags & libc::SOCK_CLOEXEC != 0).unwrap_or(-1)
}

/// Interposes the C function of this name. If RDMA cannot connect, uses TCP.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(number: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let target = table::find(number);
    // SAFETY: the functions have these types, and the arguments are the caller's under the same
    // contract.
    unsafe {
        let Some(rsocket) = target.as_ref().filter(|target| target.is_rsocket()) else {
            if let Some(target) = &target
                && target.kind() == Kind::Deferred(Deferred::Fresh)
            {
                target.set_kind(Kind::Deferred(Deferred::Connected));
            }
            let number = target.map_or(number, |target| target.target());
            return next!(connect(number: c_int, address: *const sockaddr, len: socklen_t) -> c_int);
        };
        let connected = rdma::connect(rsocket.target(), address, len);
        let errno = *libc::__errno_location();
        if connected == 0 || matches!(errno, libc::EINPROGRESS | libc::EALREADY | libc::EINTR) {
            return connected;
        }
        let Some(kernel) = kernel_socket_like(rsocket.target()) else {
            *libc::__errno_location() = errno;
            return -1;
        };
        rdma::close(rsocket.replace(Kind::Kernel, kernel));
        next!(connect(kernel: c_int, address: *const sockaddr, len: socklen_t) -> c_int)
    }
}

/// Creates a kernel socket with the options of an rsocket.
fn kernel_socket_like(rsocket: c_int) -> Option<c_int> {
    let family = match Side::Rdma.own_name(rsocket).map(|(name, _)| name.ss_family) {
        None | Some(0) => libc::AF_INET,
        Some(family) => family.into(),
    };
    let (domain, kind, protocol) = (family, libc::SOCK_STREAM, 0);
    // SAFETY: the C library's function has this type and no further preconditions.
    let made = unsafe { next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int) };
    if made < 0 {
        return None;
    }
    copy((Side::Rdma, rsocket), (Side::Kernel, made));
    Some(made)
}
