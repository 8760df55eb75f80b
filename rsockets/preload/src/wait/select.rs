//! `select` and `pselect`, by what `poll` finds.

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, fd_set, pollfd, sigset_t, timespec, timeval,
};

use super::{any_of_ours, milliseconds, rpoll, with_signals};
use crate::call::{next, real};

real! { select pselect }

/// # Safety
/// `set` is null or a set.
unsafe fn has(set: *const fd_set, number: c_int) -> bool {
    // SAFETY: the caller's promise.
    !set.is_null() && unsafe { libc::FD_ISSET(number, set) }
}

/// Which numbers are in the sets, with what is asked of each.
///
/// # Safety
/// The pointers are null or sets.
unsafe fn asked_of(count: c_int, sets: [*mut fd_set; 3]) -> Vec<pollfd> {
    let [reads, writes, excepts] = sets;
    let mut asked = Vec::new();
    for number in 0..count.min(libc::FD_SETSIZE as c_int) {
        // SAFETY: the caller's promise.
        let (read, write, except) = unsafe {
            (
                has(reads, number),
                has(writes, number),
                has(excepts, number),
            )
        };
        let mut events = 0;
        for (is, event) in [(read, POLLIN), (write, POLLOUT), (except, POLLPRI)] {
            if is {
                events |= event;
            }
        }
        if events != 0 {
            asked.push(pollfd {
                fd: number,
                events,
                revents: 0,
            });
        }
    }
    asked
}

/// Leaves in the sets what was found; how much that is.
///
/// # Safety
/// The pointers are null or sets.
unsafe fn leave_found(found: &[pollfd], sets: [*mut fd_set; 3]) -> c_int {
    let mut count = 0;
    let reported = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];
    for (set, reported) in sets.into_iter().zip(reported) {
        for fd in found {
            // SAFETY: the caller's promise.
            unsafe {
                match has(set, fd.fd) {
                    true if fd.revents & reported != 0 => count += 1,
                    true => libc::FD_CLR(fd.fd, set),
                    false => {}
                }
            }
        }
    }
    count
}

/// Waits for what the sets ask for, as `poll` would; `None` where none of them is ours.
///
/// # Safety
/// The pointers are null or sets.
unsafe fn select_ours(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: impl FnOnce() -> c_int,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut asked = asked_of(count, sets);
        if !any_of_ours(asked.iter().map(|fd| fd.fd)) {
            return None;
        }
        let timeout = timeout();
        let found = with_signals(mask, || rpoll(&mut asked, timeout));
        Some(match found < 0 {
            true => found,
            false => leave_found(&asked, sets),
        })
    }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let timeout = || match time.is_null() {
            true => -1,
            false => {
                let time = time.read();
                let time = timespec {
                    tv_sec: time.tv_sec,
                    tv_nsec: time.tv_usec * 1000,
                };
                milliseconds(&raw const time)
            }
        };
        let started = Instant::now();
        let found = select_ours(count, [reads, writes, excepts], timeout, ptr::null());
        let Some(found) = found else {
            return next!(
                select(
                    count: c_int,
                    reads: *mut fd_set,
                    writes: *mut fd_set,
                    excepts: *mut fd_set,
                    time: *mut timeval,
                ) -> c_int
            );
        };
        if found >= 0 && !time.is_null() {
            // As Linux does: programs go on with what is left.
            let before = time.read();
            let whole = Duration::from_secs(before.tv_sec.max(0).cast_unsigned())
                + Duration::from_micros(before.tv_usec.max(0).cast_unsigned());
            let left = whole.saturating_sub(started.elapsed());
            time.write(timeval {
                tv_sec: left.as_secs().cast_signed(),
                tv_usec: left.subsec_micros().into(),
            });
        }
        found
    }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let sets = [reads, writes, excepts];
        match select_ours(count, sets, || milliseconds(time), mask) {
            Some(found) => found,
            None => next!(
                pselect(
                    count: c_int,
                    reads: *mut fd_set,
                    writes: *mut fd_set,
                    excepts: *mut fd_set,
                    time: *const timespec,
                    mask: *const sigset_t,
                ) -> c_int
            ),
        }
    }
}
