//! `select` and `pselect`, implemented by `poll`.

use std::ffi::{c_int, c_short};
use std::ptr;
use std::time::{Duration, Instant};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd, sigset_t, timespec,
    timeval,
};

use super::{any_rsocket, milliseconds, rpoll, with_signals};
use crate::call::{next, real};

real! { select pselect }

/// The events that make a descriptor ready in the sets of reads, writes and exceptions. As in the
/// kernel, a hang-up is no exception. A write returns at once after one.
const REPORTED: [c_short; 3] = [
    POLLIN | POLLHUP | POLLERR,
    POLLOUT | POLLHUP | POLLERR,
    POLLPRI,
];

/// # Safety
/// `set` must be null or point to a set, and `number` must be less than FD_SETSIZE.
unsafe fn has(set: *const fd_set, number: c_int) -> bool {
    // SAFETY: `set` is non-null and valid (section Safety).
    !set.is_null() && unsafe { libc::FD_ISSET(number, set) }
}

/// Returns the descriptors in the sets with their requested events.
///
/// # Safety
/// Each pointer must be null or point to a set.
unsafe fn to_pollfds(count: c_int, sets: [*mut fd_set; 3]) -> Vec<pollfd> {
    let [reads, writes, excepts] = sets;
    let mut pollfds = Vec::new();
    for number in 0..count.min(libc::FD_SETSIZE as c_int) {
        // SAFETY: the pointers are null or valid (section Safety).
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
            pollfds.push(pollfd {
                fd: number,
                events,
                revents: 0,
            });
        }
    }
    pollfds
}

/// Reduces the sets to the descriptors that are ready. Returns their number.
///
/// # Safety
/// Each pointer must be null or point to a set.
unsafe fn set_ready(found: &[pollfd], sets: [*mut fd_set; 3]) -> c_int {
    let mut count = 0;
    for (set, reported) in sets.into_iter().zip(REPORTED) {
        for fd in found {
            // SAFETY: the pointers are null or valid (section Safety).
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

/// Waits until a descriptor has an event that `select` reports, or the time has expired; -1 on an
/// error. `poll` also reports errors and hang-ups to which its caller does not wait.
fn wait(fds: &mut [pollfd], timeout: c_int) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let started = Instant::now();
    let mut remaining = timeout;
    let mut polled = fds.to_vec();
    loop {
        let found = rpoll(&mut polled, remaining);
        for (fd, polled) in fds.iter_mut().zip(&polled) {
            fd.revents = polled.revents;
        }
        if fds.iter().any(|fd| fd.revents & POLLNVAL != 0) {
            // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
            unsafe { *libc::__errno_location() = libc::EBADF };
            return -1;
        }
        if found <= 0 || fds.iter().any(has_reported) {
            return found;
        }
        // `poll` ignores a negative number.
        for fd in polled.iter_mut().filter(|fd| fd.revents != 0) {
            fd.fd = -1;
        }
        remaining = limit.map_or(-1, |limit| {
            let left = limit.saturating_sub(started.elapsed()).as_micros();
            c_int::try_from(left.div_ceil(1000)).unwrap_or(c_int::MAX)
        });
    }
}

/// Returns whether a descriptor is ready in a set that contains it.
fn has_reported(fd: &pollfd) -> bool {
    let is_ready = |(requested, reported)| fd.events & requested != 0 && fd.revents & reported != 0;
    [POLLIN, POLLOUT, POLLPRI]
        .into_iter()
        .zip(REPORTED)
        .any(is_ready)
}

/// Waits for the descriptors in the sets by `poll`; `None` if none of them is in the table.
///
/// # Safety
/// Each pointer must be null or point to a set.
unsafe fn select_ours(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: impl FnOnce() -> c_int,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: the pointers are null or valid (section Safety).
    unsafe {
        let mut pollfds = to_pollfds(count, sets);
        if !any_rsocket(pollfds.iter().map(|fd| fd.fd)) {
            return None;
        }
        let timeout = timeout();
        let found = with_signals(mask, || wait(&mut pollfds, timeout));
        Some(match found < 0 {
            true => found,
            false => set_ready(&pollfds, sets),
        })
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: the pointers are null or valid by the contract of `select`.
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
            // Linux writes the remaining time, and programs rely on that.
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

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the pointers are null or valid by the contract of `pselect`.
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
