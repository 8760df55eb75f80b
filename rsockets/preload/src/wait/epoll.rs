//! epoll, implemented by librdmacm's epoll functions.

use std::ffi::c_int;

use libc::{epoll_event, sigset_t};

use super::{behind, with_signals};
use crate::call::{next, real};
use crate::kernel::{close_descriptor, place};
use crate::rdma;
use crate::table::{self, Kind};

real! { epoll_create1 epoll_ctl epoll_wait epoll_pwait }

/// Interposes the C function of this name. The instance supports rsockets if librdmacm does.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the functions have these types and no further preconditions.
    unsafe {
        let function = match rdma::is_inside() {
            true => None,
            false => rdma::REPOLL_CREATE.get::<unsafe extern "C" fn(c_int) -> c_int>(),
        };
        let Some(function) = function else {
            return next!(epoll_create1(flags: c_int) -> c_int);
        };
        let epoll = rdma::inside(|| function(flags));
        if epoll < 0 {
            return epoll;
        }
        let number = place(flags & libc::EPOLL_CLOEXEC != 0);
        if number >= 0 {
            table::insert_as(number, Kind::Epoll, epoll);
        } else {
            close_descriptor(epoll);
        }
        number
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    // SAFETY: `epoll_create1` has no preconditions.
    unsafe { epoll_create1(0) }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    what: c_int,
    number: c_int,
    event: *mut epoll_event,
) -> c_int {
    type Control = unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    // SAFETY: the functions have these types, and the arguments are the caller's under the same
    // contract.
    unsafe {
        let Some(target) = table::find(epoll) else {
            let number = behind(number);
            return next!(
                epoll_ctl(epoll: c_int, what: c_int, number: c_int, event: *mut epoll_event) -> c_int
            );
        };
        match rdma::REPOLL_CTL.get::<Control>() {
            Some(function) => {
                let number = behind(number);
                rdma::inside(|| function(target.target(), what, number, event))
            }
            None => -1,
        }
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    type Wait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    // SAFETY: the functions have these types, and the arguments are the caller's under the same
    // contract.
    unsafe {
        let Some(target) = table::find(epoll) else {
            return next!(
                epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int
            );
        };
        match rdma::REPOLL_WAIT.get::<Wait>() {
            Some(function) => rdma::inside(|| function(target.target(), events, most, timeout)),
            None => -1,
        }
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are the caller's under the contract of `epoll_pwait`.
    unsafe {
        if table::find(epoll).is_none() {
            return next!(
                epoll_pwait(
                    epoll: c_int,
                    events: *mut epoll_event,
                    most: c_int,
                    timeout: c_int,
                    mask: *const sigset_t,
                ) -> c_int
            );
        }
        with_signals(mask, || epoll_wait(epoll, events, most, timeout))
    }
}
