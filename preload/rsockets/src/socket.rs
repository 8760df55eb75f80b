//! Making and connecting sockets, and their names and options.

use std::env;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use libc::{sa_family_t, sockaddr, sockaddr_storage, socklen_t};

use crate::call::{next, real, sockets};
use crate::config;
use crate::descriptor::{close_really, place, rfcntl};
use crate::next::keep_errno;
use crate::rdma;
use crate::table;

real! {
    socket bind listen accept accept4 connect shutdown getpeername getsockname setsockopt getsockopt
}

sockets! {
    fn bind(address: *const sockaddr, len: socklen_t) -> c_int => RBIND;
    fn listen(backlog: c_int) -> c_int => RLISTEN;
    fn shutdown(how: c_int) -> c_int => RSHUTDOWN;
    fn getpeername(address: *mut sockaddr, len: *mut socklen_t) -> c_int => RGETPEERNAME;
    fn getsockname(address: *mut sockaddr, len: *mut socklen_t) -> c_int => RGETSOCKNAME;
    fn setsockopt(level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int => RSETSOCKOPT;
    fn getsockopt(level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int => RGETSOCKOPT;
}

/// Sizes that the environment asks for, by the number of the option.
fn wishes() -> &'static [(c_int, c_int)] {
    static WISHES: OnceLock<Vec<(c_int, c_int)>> = OnceLock::new();
    WISHES.get_or_init(|| {
        let names = [(0, "RS_SQ_SIZE"), (1, "RS_RQ_SIZE"), (2, "RS_INLINE")];
        let wish = |(option, name)| {
            let value = env::var(name).ok()?.trim().parse().ok()?;
            (value != 0).then_some((option, value))
        };
        names.into_iter().filter_map(wish).collect()
    })
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let of_ip = matches!(domain, libc::AF_INET | libc::AF_INET6);
    if of_ip && !rdma::is_inside() && config::wants(domain, kind & !flags, protocol) {
        let made = keep_errno(|| make(domain, kind, protocol));
        if let Some(made) = made {
            return made;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int) }
}

/// An rsocket for the program, if there can be one.
fn make(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    type Make = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    // SAFETY: the function's type, and arguments that it takes.
    let rsocket = unsafe {
        let function = rdma::RSOCKET.get::<Make>()?;
        rdma::inside(|| function(domain, kind, protocol))
    };
    if rsocket < 0 {
        return None;
    }
    for (option, value) in wishes() {
        set(rsocket, rdma::SOL_RDMA, *option, value);
    }
    hold(rsocket, kind & libc::SOCK_CLOEXEC != 0)
}

/// The program's number for an rsocket.
fn hold(rsocket: c_int, close_on_exec: bool) -> Option<c_int> {
    let number = place(close_on_exec);
    if number < 0 {
        // SAFETY: the function's type; nobody else knows the number.
        unsafe {
            if let Some(close) = rdma::RCLOSE.get::<unsafe extern "C" fn(c_int) -> c_int>() {
                rdma::inside(|| close(rsocket));
            }
        }
        return None;
    }
    table::insert_rsocket(number, rsocket);
    Some(number)
}

type SetOption = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;

/// Sets an option of an rsocket, if it can be.
fn set(rsocket: c_int, level: c_int, name: c_int, value: &c_int) {
    // SAFETY: the function's type, and a value of the length that is said.
    unsafe {
        if let Some(function) = rdma::RSETSOCKOPT.get::<SetOption>() {
            let value = ptr::from_ref(value).cast();
            let len = size_of::<c_int>() as socklen_t;
            rdma::inside(|| function(rsocket, level, name, value, len));
        }
    }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept(
    number: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { accept4(number, address, len, 0) }
}

/// As in C.
///
/// # Safety
/// As in C.
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
        let number = target.map_or(number, |target| target.target());
        // SAFETY: the caller's promise.
        return unsafe {
            next!(
                accept4(
                    number: c_int,
                    address: *mut sockaddr,
                    len: *mut socklen_t,
                    flags: c_int,
                ) -> c_int
            )
        };
    };
    // SAFETY: the function's type, and the caller's promise.
    let accepted = unsafe {
        let Some(function) = rdma::RACCEPT.get::<Accept>() else {
            return -1;
        };
        rdma::inside(|| function(listener.target(), address, len))
    };
    if accepted < 0 {
        return accepted;
    }
    // A socket of the kernel's has nothing of its listener's flags.
    let status = match flags & libc::SOCK_NONBLOCK {
        0 => 0,
        _ => libc::O_NONBLOCK,
    };
    rfcntl(accepted, libc::F_SETFL, status.into());
    hold(accepted, flags & libc::SOCK_CLOEXEC != 0).unwrap_or(-1)
}

/// As in C. Where RDMA finds nobody, TCP may.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(number: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    let target = table::find(number);
    // SAFETY: the caller's promise.
    unsafe {
        let Some(rsocket) = target.as_ref().filter(|target| target.is_rsocket()) else {
            let number = target.map_or(number, |target| target.target());
            return next!(connect(number: c_int, address: *const sockaddr, len: socklen_t) -> c_int);
        };
        let Some(function) = rdma::RCONNECT.get::<Connect>() else {
            return -1;
        };
        let connected = rdma::inside(|| function(rsocket.target(), address, len));
        let errno = *libc::__errno_location();
        if connected == 0 || matches!(errno, libc::EINPROGRESS | libc::EALREADY | libc::EINTR) {
            return connected;
        }
        let Some(kernel) = kernel_socket_like(rsocket.target()) else {
            *libc::__errno_location() = errno;
            return -1;
        };
        let before = rsocket.replace(kernel);
        if let Some(close) = rdma::RCLOSE.get::<unsafe extern "C" fn(c_int) -> c_int>() {
            rdma::inside(|| close(before));
        }
        next!(connect(kernel: c_int, address: *const sockaddr, len: socklen_t) -> c_int)
    }
}

/// A socket of the kernel's with what an rsocket has of its options.
fn kernel_socket_like(rsocket: c_int) -> Option<c_int> {
    type Name = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    type GetOption =
        unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    // SAFETY: the functions' types, and room for what they write.
    unsafe {
        let (get_name, get) = (
            rdma::RGETSOCKNAME.get::<Name>()?,
            rdma::RGETSOCKOPT.get::<GetOption>()?,
        );
        let mut own: sockaddr_storage = mem::zeroed();
        let mut len = size_of::<sockaddr_storage>() as socklen_t;
        rdma::inside(|| get_name(rsocket, (&raw mut own).cast(), &raw mut len));
        let family = match own.ss_family {
            0 => libc::AF_INET as sa_family_t,
            family => family,
        };
        let (domain, kind, protocol) = (c_int::from(family), libc::SOCK_STREAM, 0);
        let made = next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int);
        if made < 0 {
            return None;
        }
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        ] {
            let mut value: c_int = 0;
            let mut size = size_of::<c_int>() as socklen_t;
            let (to, room) = ((&raw mut value).cast::<c_void>(), &raw mut size);
            if rdma::inside(|| get(rsocket, level, name, to, room)) == 0 && value != 0 {
                libc::setsockopt(made, level, name, to, size);
            }
        }
        let flags = rfcntl(rsocket, libc::F_GETFL, 0) & libc::O_NONBLOCK;
        if libc::fcntl(made, libc::F_SETFL, flags) < 0 {
            close_really(made);
            return None;
        }
        Some(made)
    }
}
