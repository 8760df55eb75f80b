//! epoll for rsockets and kernel descriptors: a list of descriptors that is polled.
//!
//! Events are level-triggered, even with `EPOLLET`.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{epoll_event, pollfd};

use super::poll;
use crate::entry;
use crate::errno::Errno;
use urxe_rsockets::watch::Wake;

/// The polled descriptors, in the order in which they were added.
#[derive(Default)]
struct List {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    fd: RawFd,
    events: u32,
    data: u64,
    /// Whether it was reported with `EPOLLONESHOT`, and is disabled until modified.
    silent: bool,
}

struct Epoll {
    /// Signalled when the list changes. Its descriptor is the number of the epoll instance.
    changed: Arc<Wake>,
    list: Mutex<List>,
}

static EPOLLS: Mutex<Option<HashMap<RawFd, Arc<Epoll>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(number: c_int) -> Result<Arc<Epoll>, Errno> {
    let epolls = lock(&EPOLLS);
    let found = epolls.as_ref().and_then(|epolls| epolls.get(&number));
    found.cloned().ok_or(Errno(libc::EBADF))
}

/// Closes an epoll instance.
///
/// # Errors
/// `EBADF` if there is none of this number.
pub(super) fn close(number: c_int) -> Result<(), Errno> {
    let mut epolls = lock(&EPOLLS);
    let removed = epolls.as_mut().and_then(|epolls| epolls.remove(&number));
    removed.map(drop).ok_or(Errno(libc::EBADF))
}

/// Creates an epoll instance for rsockets. Returns its descriptor, or -1 with `errno`.
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    entry::number("repoll_create", || {
        if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let epoll = Arc::new(Epoll {
            changed: Wake::new()?,
            list: Mutex::default(),
        });
        let number = epoll.changed.fd().as_raw_fd();
        lock(&EPOLLS).get_or_insert_default().insert(number, epoll);
        Ok(number)
    })
}

/// # Safety
/// `event` must be null or valid for reading an `epoll_event`.
pub unsafe extern "C" fn repoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    entry::status_or_minus_one("repoll_ctl", || {
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        let epoll = find(epfd)?;
        if epfd == fd {
            return Err(Errno(libc::EINVAL));
        }
        let entry = |event: *mut epoll_event| match event.is_null() {
            true => Err(Errno(libc::EFAULT)),
            false => {
                // SAFETY: `event` is not null and readable: the caller's contract, section Safety.
                // The structure is packed.
                let event = unsafe { event.read_unaligned() };
                Ok(Entry {
                    fd,
                    events: event.events,
                    data: event.u64,
                    silent: false,
                })
            }
        };
        let mut list = lock(&epoll.list);
        let known = list.entries.iter().position(|other| other.fd == fd);
        match (op, known) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
            (libc::EPOLL_CTL_ADD, None) => list.entries.push(entry(event)?),
            (libc::EPOLL_CTL_MOD, Some(at)) => list.entries[at] = entry(event)?,
            (libc::EPOLL_CTL_DEL, Some(at)) => drop(list.entries.remove(at)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno(libc::ENOENT)),
            _ => return Err(Errno(libc::EINVAL)),
        }
        drop(list);
        epoll.changed.wake();
        Ok(())
    })
}

/// # Safety
/// `events` must point to `maxevents` writable `epoll_event` elements.
pub unsafe extern "C" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    entry::number("repoll_wait", || {
        let epoll = find(epfd)?;
        let most = usize::try_from(maxevents).map_err(|_| Errno(libc::EINVAL))?;
        if most == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let started = std::time::Instant::now();
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        loop {
            epoll.changed.clear();
            let entries = lock(&epoll.list).entries.clone();
            let mut fds: Vec<_> = entries
                .iter()
                .filter(|entry| !entry.silent)
                .map(to_pollfd)
                .collect();
            fds.push(pollfd {
                fd: epfd,
                events: libc::POLLIN,
                revents: 0,
            });
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let found = poll::poll(&mut fds, left)?;
            fds.pop();
            let ready = fds.iter().filter(|fd| fd.revents != 0).take(most);
            let ready: Vec<_> = ready.collect();
            let mut list = lock(&epoll.list);
            let mut reported = 0;
            for fd in ready {
                let entry = list.entries.iter_mut().find(|entry| entry.fd == fd.fd);
                let Some(entry) = entry else {
                    continue;
                };
                entry.silent = entry.events & libc::EPOLLONESHOT as u32 != 0;
                let event = epoll_event {
                    // poll and epoll use the same bits.
                    events: u32::from(fd.revents.cast_unsigned()),
                    u64: entry.data,
                };
                // SAFETY: `reported` is below `maxevents`, and `events` points to `maxevents`
                // writable elements: the caller's contract, section Safety.
                unsafe { events.add(reported).write_unaligned(event) };
                reported += 1;
            }
            drop(list);
            // A change of the list is not reported; wait again.
            if reported > 0 || found == 0 {
                return Ok(reported as c_int);
            }
        }
    })
}

fn to_pollfd(entry: &Entry) -> pollfd {
    let bits = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP;
    pollfd {
        fd: entry.fd,
        // poll and epoll use the same bits.
        events: (entry.events & bits.cast_unsigned()) as i16,
        revents: 0,
    }
}
