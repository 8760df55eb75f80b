//! Waiting for several rsockets and kernel descriptors, for `poll` and `epoll`.

use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, nfds_t, pollfd};

use crate::errno::Errno;
use urxe_rsockets::Socket;
use urxe_rsockets::settings::defaults;
use urxe_rsockets::stream::Ready;
use urxe_rsockets::watch::{Wake, Watchers};

/// The registration of a waiting thread with what it waits for, removed when dropped.
pub(super) struct Watching {
    wake: Arc<Wake>,
    watchers: Vec<Arc<Watchers>>,
    /// The descriptors whose readiness signals a change, and the socket of each, if any.
    fds: Vec<pollfd>,
    sockets: Vec<Option<Socket>>,
}

impl Watching {
    fn new(wake: Arc<Wake>) -> Self {
        Watching {
            fds: vec![readable(wake.fd().as_raw_fd())],
            sockets: vec![None],
            watchers: Vec::new(),
            wake,
        }
    }

    /// Adds a socket, and enables its notifications.
    pub(super) fn add_socket(&mut self, socket: &Socket) {
        self.add_watchers(socket.watchers());
        if let Some(fd) = socket.arm() {
            self.fds.push(readable(fd));
            self.sockets.push(Some(socket.clone()));
        }
    }

    /// Adds something that wakes its watchers.
    pub(super) fn add_watchers(&mut self, watchers: &Arc<Watchers>) {
        watchers.add(&self.wake);
        self.watchers.push(Arc::clone(watchers));
    }

    /// Adds a kernel descriptor.
    pub(super) fn add_descriptor(&mut self, fd: pollfd) {
        self.fds.push(fd);
        self.sockets.push(None);
    }

    /// Waits for a change, and consumes the notifications of the sockets.
    fn wait(&mut self, timeout: c_int) -> Result<(), Errno> {
        system_poll(&mut self.fds, timeout)?;
        for (socket, fd) in self.sockets.iter().zip(&self.fds) {
            if let Some(socket) = socket
                && fd.revents != 0
            {
                socket.clear();
                // The next test may end before this socket. Processing its completions wakes the
                // other threads that wait for it, which do not see the notification any more.
                let _ = socket.ready();
            }
        }
        Ok(())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        for watchers in &self.watchers {
            watchers.remove(&self.wake);
        }
    }
}

pub(super) fn readable(fd: RawFd) -> pollfd {
    pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    }
}

/// Returns the poll events of a socket, restricted to `events`.
pub(super) fn revents(ready: &Ready, events: c_short) -> c_short {
    // Many applications treat POLLHUP as an error, so it is not reported while data can be read.
    let has_unread_data = ready.has_data && events & POLLIN != 0;
    let mut revents = 0;
    for (applies, event) in [
        (ready.readable && events & POLLIN != 0, POLLIN),
        (ready.writable && events & POLLOUT != 0, POLLOUT),
        (ready.has_ended && events & POLLRDHUP != 0, POLLRDHUP),
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
pub(super) fn system_poll(fds: &mut [pollfd], timeout: c_int) -> Result<usize, Errno> {
    // SAFETY: `fds` points to `fds.len()` elements.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error().into())
}

/// Returns the remaining time in milliseconds; -1 for no limit.
pub(super) fn milliseconds(left: Option<Duration>) -> c_int {
    // Rounded up, so that the time has expired when the wait ends.
    left.map_or(-1, |left| {
        c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    })
}

/// Waits until `test` returns a number other than 0, or the time has expired. Returns the number.
///
/// `watch` adds all that `test` tests. Both are called again after each change.
pub(super) fn wait(
    timeout: Option<Duration>,
    mut test: impl FnMut() -> Result<usize, Errno>,
    mut watch: impl FnMut(&mut Watching),
) -> Result<usize, Errno> {
    let started = Instant::now();
    let has_expired = || timeout.is_some_and(|timeout| started.elapsed() >= timeout);
    loop {
        let found = test()?;
        if found > 0 || has_expired() {
            return Ok(found);
        }
        if started.elapsed() >= defaults().polling {
            break;
        }
    }
    let wake = Wake::of_thread()?;
    loop {
        wake.clear();
        let mut watching = Watching::new(Arc::clone(&wake));
        watch(&mut watching);
        // An event before arming causes no notification, so test once more.
        let found = test()?;
        if found > 0 || has_expired() {
            return Ok(found);
        }
        let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        watching.wait(milliseconds(left))?;
    }
}
