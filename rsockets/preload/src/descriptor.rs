//! Descriptors: duplicating, closing and querying them.

use std::ffi::{c_int, c_long};
use std::sync::Arc;

use libc::{Ioctl, stat, stat64};

use crate::call::{next, real};
use crate::kernel::close_descriptor;
use crate::next::preserve_errno;
use crate::rdma;
use crate::table::{self, Target};

real! { dup dup2 dup3 fcntl fcntl64 ioctl fstat fstat64 __fxstat __fxstat64 }

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(number: c_int) -> c_int {
    let target = table::remove(number);
    // SAFETY: the program does not use a descriptor after closing it.
    let closed = unsafe { close_descriptor(number) };
    // The target may be closed here, after its number has been freed.
    preserve_errno(|| drop(target));
    closed
}

/// Adds a duplicate, if there is one, to the table.
fn duplicated(target: Option<Arc<Target>>, duplicate: c_int) -> c_int {
    if let Some(target) = target
        && duplicate >= 0
    {
        table::share(duplicate, target);
    }
    duplicate
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(old: c_int) -> c_int {
    // SAFETY: the C library's function has this type and no further preconditions.
    duplicated(table::find(old), unsafe { next!(dup(old: c_int) -> c_int) })
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: the C library's function has this type and no further preconditions.
        return unsafe { next!(dup2(old: c_int, new: c_int) -> c_int) };
    }
    let target = table::find(old);
    let replaced = table::remove(new);
    // SAFETY: the C library's function has this type and no further preconditions.
    let duplicate = unsafe { next!(dup2(old: c_int, new: c_int) -> c_int) };
    preserve_errno(|| drop(replaced));
    duplicated(target, duplicate)
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let target = table::find(old);
    let replaced = if old == new { None } else { table::remove(new) };
    // SAFETY: the C library's function has this type and no further preconditions.
    let duplicate = unsafe { next!(dup3(old: c_int, new: c_int, flags: c_int) -> c_int) };
    preserve_errno(|| drop(replaced));
    duplicated(target, duplicate)
}

/// Calls `rfcntl`.
pub(crate) fn rfcntl(rsocket: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: `rfcntl` is variadic and takes an integer argument, if any.
    unsafe {
        match rdma::RFCNTL.get::<unsafe extern "C" fn(c_int, c_int, ...) -> c_int>() {
            Some(function) => rdma::inside(|| function(rsocket, command, argument)),
            None => -1,
        }
    }
}

/// Executes commands of `fcntl` that concern an rsocket; `None` for those on the descriptor itself.
fn fcntl_of(target: &Arc<Target>, command: c_int, argument: c_long) -> Option<c_int> {
    match command {
        libc::F_GETFL | libc::F_SETFL if target.is_rsocket() => {
            Some(rfcntl(target.target(), command, argument))
        }
        _ => None,
    }
}

macro_rules! fcntls {
    ($($name:ident)*) => {
        $(
            /// Interposes the C function of this name. Its argument is variadic; see lib.rs.
            ///
            /// # Safety
            /// The contract of the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(number: c_int, command: c_int, argument: c_long) -> c_int {
                let target = table::find(number);
                if let Some(target) = &target
                    && let Some(result) = fcntl_of(target, command, argument)
                {
                    return result;
                }
                let number = match &target {
                    Some(target) if !target.is_rsocket() && !target.is_epoll()
                        && matches!(command, libc::F_GETFL | libc::F_SETFL) => target.target(),
                    _ => number,
                };
                // SAFETY: the C library's function has this type, and the arguments are the
                // caller's under the same contract.
                let result = unsafe {
                    next!($name(number: c_int, command: c_int, argument: c_long) -> c_int)
                };
                match command {
                    libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(target, result),
                    _ => result,
                }
            }
        )*
    };
}

fcntls! { fcntl fcntl64 }

/// Interposes the C function of this name. Its argument is variadic; see lib.rs.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(number: c_int, request: Ioctl, argument: *mut c_int) -> c_int {
    let target = table::find(number);
    match &target {
        Some(target) if target.is_rsocket() && request == libc::FIONBIO => {
            let flags = rfcntl(target.target(), libc::F_GETFL, 0);
            // SAFETY: FIONBIO takes a pointer to an integer, which the caller's contract makes
            // readable.
            let flags = match unsafe { argument.read_unaligned() } {
                0 => flags & !libc::O_NONBLOCK,
                _ => flags | libc::O_NONBLOCK,
            };
            rfcntl(target.target(), libc::F_SETFL, flags.into())
        }
        _ => {
            let kernel = target.filter(|target| !target.is_rsocket() && !target.is_epoll());
            let number = kernel.map_or(number, |target| target.target());
            // SAFETY: the C library's function has this type, and the arguments are the caller's
            // under the same contract.
            unsafe { next!(ioctl(number: c_int, request: Ioctl, argument: *mut c_int) -> c_int) }
        }
    }
}

macro_rules! stats {
    ($(fn $name:ident($($version:ident: $type:ty)?) of $stat:ty;)*) => {
        $(
            /// Interposes the C function of this name. Reports an rsocket as a socket.
            ///
            /// # Safety
            /// The contract of the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($version: $type,)? number: c_int, to: *mut $stat) -> c_int {
                let is_socket = table::find(number).is_some_and(|target| !target.is_epoll());
                // SAFETY: the C library's function has this type, and the arguments are the
                // caller's under the same contract. `to` is changed only after the function has
                // initialized it.
                unsafe {
                    let result = next!($name($($version: $type,)? number: c_int, to: *mut $stat) -> c_int);
                    if result == 0 && is_socket {
                        let mode = &raw mut (*to).st_mode;
                        mode.write(mode.read() & !libc::S_IFMT | libc::S_IFSOCK);
                    }
                    result
                }
            }
        )*
    };
}

stats! {
    fn fstat() of stat;
    fn fstat64() of stat64;
    fn __fxstat(version: c_int) of stat;
    fn __fxstat64(version: c_int) of stat64;
}
