//! Descriptors of the kernel.

use std::ffi::c_int;

use crate::call::{next, real};

real! { close }

/// Closes a descriptor of the kernel.
///
/// # Safety
/// Nothing may use the descriptor afterwards.
pub(crate) unsafe fn close_descriptor(number: c_int) -> c_int {
    // SAFETY: nothing uses the descriptor afterwards: the caller's contract, section Safety.
    unsafe { next!(close(number: c_int) -> c_int) }
}

/// Opens a descriptor that reserves a number for a socket.
pub(crate) fn place(close_on_exec: bool) -> c_int {
    let flags = match close_on_exec {
        true => libc::O_RDONLY | libc::O_CLOEXEC,
        false => libc::O_RDONLY,
    };
    // SAFETY: the path is NUL-terminated.
    unsafe { libc::open(c"/dev/null".as_ptr(), flags) }
}
