//! `rpoll` and `rselect` for rsockets and kernel descriptors.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, nfds_t, pollfd, timeval};

use super::epoll::{self, Epoll};
use super::wait::{self, milliseconds, revents, system_poll};
use crate::entry;
use crate::errno::Errno;
use urxe_rsockets::{self as sockets, Socket};

/// What a number stands for.
enum Polled {
    Socket(Socket),
    /// A socket of the parent process.
    Inherited,
    Epoll(Arc<Epoll>),
    Kernel,
}

impl Polled {
    fn of(fd: &pollfd) -> Self {
        if let Some(socket) = sockets::find(fd.fd) {
            return match socket.is_inherited() {
                true => Self::Inherited,
                false => Self::Socket(socket),
            };
        }
        epoll::find(fd.fd).map_or(Self::Kernel, Self::Epoll)
    }
}

/// Updates `revents` of all descriptors. Returns the number of descriptors with an event.
fn poll_now(fds: &mut [pollfd], polled: &[Polled]) -> Result<usize, Errno> {
    let mut others = Vec::new();
    for (at, (fd, polled)) in fds.iter_mut().zip(polled).enumerate() {
        match polled {
            Polled::Socket(socket) => fd.revents = revents(&socket.ready(), fd.events),
            Polled::Epoll(epoll) => {
                fd.revents = if epoll.is_ready()? {
                    fd.events & POLLIN
                } else {
                    0
                };
            }
            Polled::Inherited => fd.revents = POLLNVAL,
            Polled::Kernel => others.push((at, *fd)),
        }
    }
    if !others.is_empty() {
        let mut kernel: Vec<_> = others.iter().map(|(_, fd)| *fd).collect();
        system_poll(&mut kernel, 0)?;
        for ((at, _), fd) in others.iter().zip(kernel) {
            fds[*at].revents = fd.revents;
        }
    }
    Ok(fds.iter().filter(|fd| fd.revents != 0).count())
}

/// Waits until a descriptor is ready or the time has expired. Returns the number of ready ones.
fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let polled: Vec<_> = fds.iter().map(Polled::of).collect();
    if polled.iter().all(|polled| matches!(polled, Polled::Kernel)) {
        return system_poll(fds, milliseconds(timeout));
    }
    let requested = fds.to_vec();
    wait::wait(
        timeout,
        || poll_now(fds, &polled),
        |watching| {
            for (polled, fd) in polled.iter().zip(&requested) {
                match polled {
                    Polled::Socket(socket) => watching.add_socket(socket),
                    Polled::Epoll(epoll) if fd.events & POLLIN != 0 => epoll.watch(watching),
                    Polled::Epoll(_) | Polled::Inherited => {}
                    Polled::Kernel => watching.add_descriptor(*fd),
                }
            }
        },
    )
}

/// Waits for events of rsockets and kernel descriptors.
///
/// # Safety
/// `fds` must point to `nfds` readable and writable `pollfd` elements.
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    entry::number("rpoll", || {
        let count = usize::try_from(nfds).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: `fds` points to `nfds` readable elements: the caller's contract, section Safety.
        let mut polled: Vec<_> = (0..count)
            .map(|at| unsafe { fds.add(at).read_unaligned() })
            .collect();
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let found = poll(&mut polled, timeout)?;
        for (at, fd) in polled.iter().enumerate() {
            // SAFETY: `fds` points to `nfds` writable elements: the caller's contract, section
            // Safety.
            unsafe { (&raw mut (*fds.add(at)).revents).write_unaligned(fd.revents) };
        }
        Ok(found as c_int)
    })
}

/// Returns whether a descriptor is in the set.
///
/// # Safety
/// `set` must be null or point to a readable `fd_set`; `fd` must be from 0 to `FD_SETSIZE` - 1.
unsafe fn has(set: *mut fd_set, fd: c_int) -> bool {
    // SAFETY: `set` is non-null (checked first) and readable, and `fd` is in range: the caller's
    // contract, section Safety.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

/// Waits until a descriptor in the sets is ready; rsockets and kernel descriptors may be mixed.
///
/// # Safety
/// The sets must be null or valid for reading and writing an `fd_set`, `timeout` null or readable.
pub unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    entry::number("rselect", || {
        if !(0..=libc::FD_SETSIZE as c_int).contains(&nfds) {
            return Err(Errno(libc::EINVAL));
        }
        let timeout = match timeout.is_null() {
            true => None,
            false => {
                // SAFETY: `timeout` is non-null (checked above) and readable: the caller's
                // contract, section Safety.
                let time = unsafe { entry::read(timeout) }?;
                let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno(libc::EINVAL))?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| Errno(libc::EINVAL))?;
                Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
        };
        let mut polled = Vec::new();
        for fd in 0..nfds {
            // SAFETY: the sets are null or readable: the caller's contract, section Safety. `fd` is
            // below `nfds`, which is at most `FD_SETSIZE`.
            let (read, write, except) =
                unsafe { (has(readfds, fd), has(writefds, fd), has(exceptfds, fd)) };
            if read || write || except {
                let requested = [(read, POLLIN), (write, POLLOUT), (except, POLLPRI)];
                let requested = requested.iter().filter(|(is, _)| *is);
                let events = requested.fold(0, |events, (_, event)| events | event);
                polled.push(pollfd {
                    fd,
                    events,
                    revents: 0,
                });
            }
        }
        poll(&mut polled, timeout)?;
        let mut found = 0;
        // As with rdma-core, a socket that has hung up or failed is exceptional.
        for (set, reported) in [
            (readfds, POLLIN | POLLHUP | POLLERR),
            (writefds, POLLOUT | POLLHUP | POLLERR),
            (exceptfds, POLLPRI | POLLHUP | POLLERR),
        ] {
            if set.is_null() {
                continue;
            }
            for fd in &polled {
                // SAFETY: `set` is non-null (checked above), readable and writable: the caller's
                // contract, section Safety. `fd.fd` is below `nfds`, which is at most `FD_SETSIZE`.
                unsafe {
                    if !libc::FD_ISSET(fd.fd, set) {
                        continue;
                    }
                    match fd.revents & reported != 0 {
                        true => found += 1,
                        false => libc::FD_CLR(fd.fd, set),
                    }
                }
            }
        }
        match polled.iter().any(|fd| fd.revents & POLLNVAL != 0) {
            true => Err(Errno(libc::EBADF)),
            false => Ok(found),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::wait::readable;
    use super::*;
    use std::ptr;

    const NO_SET: *mut fd_set = ptr::null_mut();

    #[test]
    fn kernel_descriptors_are_polled_by_the_kernel() {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors, and both are open afterwards.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let mut fds = [readable(ends[0])];
            assert_eq!(rpoll(fds.as_mut_ptr(), 1, 0), 0);
            assert_eq!(libc::write(ends[1], b"x".as_ptr().cast(), 1), 1);
            assert_eq!(rpoll(fds.as_mut_ptr(), 1, -1), 1);
            assert_eq!(fds[0].revents, POLLIN);
            let mut set: fd_set = std::mem::zeroed();
            libc::FD_SET(ends[0], &raw mut set);
            let set = &raw mut set;
            assert_eq!(
                rselect(ends[0] + 1, set, NO_SET, NO_SET, ptr::null_mut()),
                1
            );
            assert!(libc::FD_ISSET(ends[0], set));
            for fd in ends {
                libc::close(fd);
            }
        }
    }
}
