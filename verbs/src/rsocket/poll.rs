//! `rpoll` and `rselect` for rsockets and kernel descriptors.

use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, fd_set, nfds_t, pollfd, timeval};

use crate::entry;
use crate::errno::Errno;
use urxe_rsockets::settings::defaults;
use urxe_rsockets::stream::Ready;
use urxe_rsockets::watch::Wake;
use urxe_rsockets::{self as sockets, Socket};

/// Descriptors and, for each rsocket among them, its socket.
struct Polled {
    fds: Vec<pollfd>,
    sockets: Vec<Option<Socket>>,
}

impl Polled {
    fn new(fds: Vec<pollfd>) -> Self {
        let sockets = fds.iter().map(|fd| sockets::find(fd.fd)).collect();
        Polled { fds, sockets }
    }

    /// Updates `revents` of all descriptors. Returns the number of descriptors with an event.
    fn poll_now(&mut self) -> Result<usize, Errno> {
        let mut others = Vec::new();
        for (at, (fd, socket)) in self.fds.iter_mut().zip(&self.sockets).enumerate() {
            match socket {
                Some(socket) => fd.revents = revents(socket, fd.events),
                None => others.push((at, *fd)),
            }
        }
        if !others.is_empty() {
            let mut fds: Vec<_> = others.iter().map(|(_, fd)| *fd).collect();
            system_poll(&mut fds, 0)?;
            for ((at, _), fd) in others.iter().zip(fds) {
                self.fds[*at].revents = fd.revents;
            }
        }
        Ok(self.fds.iter().filter(|fd| fd.revents != 0).count())
    }

    /// Arms the sockets, and returns the kernel descriptors whose readiness signals a change.
    fn arm(&self, wake: &Wake) -> Vec<pollfd> {
        let pollfd_of = |(fd, socket): (&pollfd, &Option<Socket>)| match socket {
            Some(Socket::Stream(stream)) => readable(stream.arm(|fd| fd.as_raw_fd())),
            Some(Socket::Datagram(datagrams)) => readable(datagrams.arm(|fd| fd.as_raw_fd())),
            None => *fd,
        };
        let mut fds: Vec<_> = self.fds.iter().zip(&self.sockets).map(pollfd_of).collect();
        fds.push(readable(wake.fd().as_raw_fd()));
        fds
    }

    /// Consumes the notifications of the descriptors that the kernel reported.
    fn clear(&self, armed: &[pollfd]) {
        for (socket, fd) in self.sockets.iter().zip(armed) {
            match socket {
                Some(_) if fd.revents == 0 => {}
                Some(Socket::Stream(stream)) => stream.clear(),
                Some(Socket::Datagram(datagrams)) => datagrams.clear(),
                None => {}
            }
        }
    }
}

fn readable(fd: RawFd) -> pollfd {
    pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    }
}

/// Returns the poll events of a socket, restricted to `events`.
fn revents(socket: &Socket, events: c_short) -> c_short {
    let ready = match socket {
        Socket::Stream(stream) => stream.ready(),
        Socket::Datagram(datagrams) => {
            let (readable, writable) = datagrams.ready();
            Ready {
                readable,
                writable,
                ..Ready::default()
            }
        }
    };
    // Many applications treat POLLHUP as an error, so it is not reported while data can be read.
    let has_unread_data = ready.has_data && events & POLLIN != 0;
    let mut revents = 0;
    for (applies, event) in [
        (ready.readable && events & POLLIN != 0, POLLIN),
        (ready.writable && events & POLLOUT != 0, POLLOUT),
        (ready.hung_up && !has_unread_data, POLLHUP),
        (ready.failed, POLLERR),
    ] {
        if applies {
            revents |= event;
        }
    }
    revents
}

/// Calls the kernel's `poll`.
fn system_poll(fds: &mut [pollfd], timeout: c_int) -> Result<usize, Errno> {
    // SAFETY: `fds` points to `fds.len()` elements.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error().into())
}

/// The registration of a waiting thread with its sockets, removed when dropped.
struct Watching<'a> {
    wake: Arc<Wake>,
    sockets: &'a [Option<Socket>],
}

impl<'a> Watching<'a> {
    fn new(sockets: &'a [Option<Socket>]) -> Result<Self, Errno> {
        let wake = Wake::new()?;
        for socket in sockets.iter().flatten() {
            watchers(socket).add(&wake);
        }
        Ok(Watching { wake, sockets })
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        for socket in self.sockets.iter().flatten() {
            watchers(socket).remove(&self.wake);
        }
    }
}

fn watchers(socket: &Socket) -> &sockets::watch::Watchers {
    match socket {
        Socket::Stream(stream) => &stream.watchers,
        Socket::Datagram(datagrams) => &datagrams.watchers,
    }
}

/// Returns the remaining time in milliseconds; -1 for no limit.
fn milliseconds(left: Option<Duration>) -> c_int {
    // Rounded up, so that the time has expired when the wait ends.
    left.map_or(-1, |left| {
        c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    })
}

/// Waits until a descriptor is ready or the time has expired. Returns the number of ready ones.
pub(super) fn poll(fds: &mut Vec<pollfd>, timeout: Option<Duration>) -> Result<usize, Errno> {
    let mut polled = Polled::new(std::mem::take(fds));
    let found = wait(&mut polled, timeout);
    *fds = polled.fds;
    found
}

fn wait(polled: &mut Polled, timeout: Option<Duration>) -> Result<usize, Errno> {
    let started = Instant::now();
    let has_expired = || timeout.is_some_and(|timeout| started.elapsed() >= timeout);
    if polled.sockets.iter().all(Option::is_none) {
        return system_poll(&mut polled.fds, milliseconds(timeout));
    }
    loop {
        let found = polled.poll_now()?;
        if found > 0 || has_expired() {
            return Ok(found);
        }
        if started.elapsed() >= defaults().polling {
            break;
        }
    }
    let sockets = polled.sockets.clone();
    let watching = Watching::new(&sockets)?;
    loop {
        watching.wake.clear();
        let mut armed = polled.arm(&watching.wake);
        // An event before arming causes no notification, so poll once more.
        let found = polled.poll_now()?;
        if found > 0 || has_expired() {
            return Ok(found);
        }
        let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        system_poll(&mut armed, milliseconds(left))?;
        polled.clear(&armed);
    }
}

/// Waits for events of rsockets and kernel descriptors.
///
/// # Safety
/// `fds` must point to `nfds` readable and writable `pollfd` elements.
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    entry::number("rpoll", || {
        let count = usize::try_from(nfds).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: `fds` points to `nfds` readable elements: the caller's contract, section Safety.
        let mut polled = (0..count)
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
                let events = if read { POLLIN } else { 0 } | if write { POLLOUT } else { 0 };
                polled.push(pollfd {
                    fd,
                    events,
                    revents: 0,
                });
            }
        }
        poll(&mut polled, timeout)?;
        let mut found = 0;
        for (set, event, reported) in [
            (readfds, POLLIN, POLLIN | POLLHUP | POLLERR),
            (writefds, POLLOUT, POLLOUT | POLLERR),
            (exceptfds, 0, libc::POLLPRI),
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
                    let requested = event == 0 || fd.events & event != 0;
                    match requested && fd.revents & reported != 0 {
                        true => found += 1,
                        false => libc::FD_CLR(fd.fd, set),
                    }
                }
            }
        }
        match polled.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            true => Err(Errno(libc::EBADF)),
            false => Ok(found),
        }
    })
}

#[cfg(test)]
mod tests {
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
