//! Waiting for several descriptors: `poll`, `select` and epoll.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, epoll_event, fd_set, nfds_t, pollfd, sigset_t,
    timespec, timeval,
};

use crate::call::{next, real};
use crate::descriptor::{close_really, place};
use crate::rdma;
use crate::table;

real! {
    poll ppoll __poll_chk select pselect epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
}

/// Whether any of these numbers is one that the kernel does not know the meaning of.
fn any_of_ours(numbers: impl IntoIterator<Item = c_int>) -> bool {
    numbers
        .into_iter()
        .any(|number| table::find(number).is_some())
}

/// The number behind a number.
fn behind(number: c_int) -> c_int {
    table::find(number).map_or(number, |target| target.target())
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
        let sets = [reads, writes, excepts];
        let mut asked = asked_of(count, sets);
        if !any_of_ours(asked.iter().map(|fd| fd.fd)) {
            return next!(
                select(
                    count: c_int,
                    reads: *mut fd_set,
                    writes: *mut fd_set,
                    excepts: *mut fd_set,
                    time: *mut timeval,
                ) -> c_int
            );
        }
        let timeout = match time.is_null() {
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
        let found = rpoll(&mut asked, timeout);
        if found < 0 {
            return found;
        }
        if !time.is_null() {
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
        leave_found(&asked, sets)
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
        let mut asked = asked_of(count, sets);
        if !any_of_ours(asked.iter().map(|fd| fd.fd)) {
            return next!(
                pselect(
                    count: c_int,
                    reads: *mut fd_set,
                    writes: *mut fd_set,
                    excepts: *mut fd_set,
                    time: *const timespec,
                    mask: *const sigset_t,
                ) -> c_int
            );
        }
        let timeout = milliseconds(time);
        let found = with_signals(mask, || rpoll(&mut asked, timeout));
        match found < 0 {
            true => found,
            false => leave_found(&asked, sets),
        }
    }
}

/// As in C: one that knows rsockets, too, where librdmacm has such.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the functions' types.
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
            table::insert_epoll(number, epoll);
        } else {
            close_really(epoll);
        }
        number
    }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { epoll_create1(0) }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    what: c_int,
    number: c_int,
    event: *mut epoll_event,
) -> c_int {
    type Control = unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    // SAFETY: the caller's promise.
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

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    type Wait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    // SAFETY: the caller's promise.
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

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
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
