//! Waiting for several descriptors: `poll`, `select` and epoll.

pub mod epoll;
pub mod select;

use std::ffi::c_int;
use std::mem;
use std::ptr;

use libc::{nfds_t, pollfd, sigset_t, timespec};

use crate::call::{next, real};
use crate::fork;
use crate::rdma;
use crate::table;

real! { poll ppoll __poll_chk }

/// Returns whether any of these descriptors is an rsocket, that is, in the table.
fn any_rsocket(numbers: impl IntoIterator<Item = c_int>) -> bool {
    numbers
        .into_iter()
        .any(|number| table::find(number).is_some())
}

/// Returns the descriptor or rsocket behind a number of the program. Resolves a deferred accepted
/// connection first, because it receives no data before.
fn behind(number: c_int) -> c_int {
    match table::find(number) {
        Some(target) => {
            fork::resolve_accepted(&target);
            target.target()
        }
        None => number,
    }
}

/// Calls `rpoll` with the targets of the program's descriptors.
fn rpoll(fds: &mut [pollfd], timeout: c_int) -> c_int {
    type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    let mut pollfds: Vec<pollfd> = fds
        .iter()
        .map(|fd| pollfd {
            fd: behind(fd.fd),
            ..*fd
        })
        .collect();
    // SAFETY: `rpoll` has this type, and the array has the length that is passed.
    let found = unsafe {
        let Some(function) = rdma::RPOLL.get::<Poll>() else {
            return -1;
        };
        rdma::inside(|| function(pollfds.as_mut_ptr(), pollfds.len() as nfds_t, timeout))
    };
    for (fd, polled) in fds.iter_mut().zip(pollfds) {
        fd.revents = polled.revents;
    }
    found
}

/// Copies the elements of an array.
///
/// # Safety
/// `fds` must point to `count` readable elements.
unsafe fn copy(fds: *const pollfd, count: nfds_t) -> Vec<pollfd> {
    (0..count as usize)
        // SAFETY: `at < count`, and `fds` points to `count` readable elements (section Safety).
        .map(|at| unsafe { fds.add(at).read() })
        .collect()
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: `fds` points to `count` readable and writable elements by the contract of `poll`.
    unsafe {
        if !polls_rsockets(fds, count) {
            return next!(poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int);
        }
        let mut polled = copy(fds, count);
        let found = rpoll(&mut polled, timeout);
        for (at, fd) in polled.iter().enumerate() {
            (&raw mut (*fds.add(at)).revents).write(fd.revents);
        }
        found
    }
}

/// Returns whether an rsocket is among the descriptors.
///
/// # Safety
/// `fds` must point to `count` readable elements.
unsafe fn polls_rsockets(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: `at < count`, and `fds` points to `count` readable elements (section Safety).
    any_rsocket((0..count as usize).map(|at| unsafe { (&raw const (*fds.add(at)).fd).read() }))
}

/// Interposes the fortified variant of `poll`.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    // SAFETY: the arguments fulfil the contract of `__poll_chk`, which includes that of `poll`: the
    // caller's contract, section Safety.
    unsafe {
        if room / size_of::<pollfd>() >= count as usize {
            return poll(fds, count, timeout);
        }
        next!(__poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int)
    }
}

/// Waits with a signal mask. The mask is not set atomically with the wait, unlike in the kernel.
///
/// # Safety
/// `mask` must be null or point to a signal set.
unsafe fn with_signals<R>(mask: *const sigset_t, wait: impl FnOnce() -> R) -> R {
    // SAFETY: zeroes are a valid `sigset_t`. A non-null `mask` points to a signal set: the caller's
    // contract, section Safety. The first call stores the old set in `before`, which is a local
    // variable.
    unsafe {
        let mut before: sigset_t = mem::zeroed();
        if !mask.is_null() {
            libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before);
        }
        let result = wait();
        if !mask.is_null() {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        }
        result
    }
}

/// Returns a time in milliseconds, rounded up; -1 for null.
///
/// # Safety
/// `time` must be null or point to a time.
unsafe fn milliseconds(time: *const timespec) -> c_int {
    if time.is_null() {
        return -1;
    }
    // SAFETY: `time` is non-null and valid (section Safety).
    let time = unsafe { time.read() };
    let millis = time
        .tv_sec
        .saturating_mul(1000)
        .saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the pointers are the caller's, valid under the contract of `ppoll`.
    unsafe {
        if !polls_rsockets(fds, count) {
            return next!(
                ppoll(fds: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int
            );
        }
        let timeout = milliseconds(time);
        with_signals(mask, || poll(fds, count, timeout))
    }
}
