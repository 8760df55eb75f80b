//! Waiting for several descriptors: `poll` here, and what else there is.

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

/// Whether any of these numbers is one that the kernel does not know the meaning of.
fn any_of_ours(numbers: impl IntoIterator<Item = c_int>) -> bool {
    numbers
        .into_iter()
        .any(|number| table::find(number).is_some())
}

/// The number behind a number. A connection that a server has put off is made first: nothing comes before.
fn behind(number: c_int) -> c_int {
    match table::find(number) {
        Some(target) => {
            fork::settle_accepted(&target);
            target.target()
        }
        None => number,
    }
}

/// Waits by `rpoll`. The numbers are the program's.
fn rpoll(fds: &mut [pollfd], timeout: c_int) -> c_int {
    type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    let mut asked: Vec<pollfd> = fds
        .iter()
        .map(|fd| pollfd {
            fd: behind(fd.fd),
            ..*fd
        })
        .collect();
    // SAFETY: the function's type, and as many as is said.
    let found = unsafe {
        let Some(function) = rdma::RPOLL.get::<Poll>() else {
            return -1;
        };
        rdma::inside(|| function(asked.as_mut_ptr(), asked.len() as nfds_t, timeout))
    };
    for (fd, asked) in fds.iter_mut().zip(asked) {
        fd.revents = asked.revents;
    }
    found
}

/// Copies of so many.
///
/// # Safety
/// There are as many.
unsafe fn copies(fds: *const pollfd, count: nfds_t) -> Vec<pollfd> {
    (0..count as usize)
        // SAFETY: the caller's promise.
        .map(|at| unsafe { fds.add(at).read() })
        .collect()
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !rdma_is_asked(fds, count) {
            return next!(poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int);
        }
        let mut polled = copies(fds, count);
        let found = rpoll(&mut polled, timeout);
        for (at, fd) in polled.iter().enumerate() {
            (&raw mut (*fds.add(at)).revents).write(fd.revents);
        }
        found
    }
}

/// # Safety
/// There are as many.
unsafe fn rdma_is_asked(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: the caller's promise.
    any_of_ours((0..count as usize).map(|at| unsafe { (&raw const (*fds.add(at)).fd).read() }))
}

/// As in C: what fortified programs call in the place of `poll`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if room / size_of::<pollfd>() >= count as usize {
            return poll(fds, count, timeout);
        }
        next!(__poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int)
    }
}

/// Waits with other signals blocked. Not at once with the wait, as the kernel does it.
///
/// # Safety
/// `mask` is null or a set.
unsafe fn with_signals<R>(mask: *const sigset_t, wait: impl FnOnce() -> R) -> R {
    // SAFETY: the caller's promise, and a set that is filled in before it is read.
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

/// Milliseconds, up; -1 without a time.
///
/// # Safety
/// `time` is null or a time.
unsafe fn milliseconds(time: *const timespec) -> c_int {
    if time.is_null() {
        return -1;
    }
    // SAFETY: the caller's promise.
    let time = unsafe { time.read() };
    let millis = time
        .tv_sec
        .saturating_mul(1000)
        .saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !rdma_is_asked(fds, count) {
            return next!(
                ppoll(fds: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int
            );
        }
        let timeout = milliseconds(time);
        with_signals(mask, || poll(fds, count, timeout))
    }
}
