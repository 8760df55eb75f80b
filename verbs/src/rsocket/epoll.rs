//! epoll for rsockets and kernel descriptors.
//!
//! An instance has a list of rsockets, which are polled, and an epoll instance of the kernel with all
//! other descriptors. Thus the kernel decides which events these have, and removes a descriptor when
//! it is closed. Events of rsockets are level-triggered, even with `EPOLLET`.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{epoll_event, pollfd};

use super::poll;
use crate::entry;
use crate::errno::Errno;
use urxe_rsockets as sockets;
use urxe_rsockets::watch::Wake;

/// The rsockets, in the order in which they were added.
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
    /// The kernel's instance, with the descriptors that are not rsockets.
    kernel: OwnedFd,
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

/// Removes an rsocket from all epoll instances, as the kernel removes a closed descriptor.
///
/// The caller must not have freed its number yet, which the next descriptor may have.
pub(super) fn forget(socket: RawFd) {
    let epolls = lock(&EPOLLS);
    for epoll in epolls.iter().flat_map(HashMap::values) {
        lock(&epoll.list).entries.retain(|entry| entry.fd != socket);
    }
}

/// Creates an epoll instance of the kernel.
fn create() -> Result<OwnedFd, Errno> {
    // SAFETY: the call has no preconditions.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    match fd < 0 {
        true => Err(std::io::Error::last_os_error().into()),
        // SAFETY: the call has succeeded, so `fd` is an open descriptor that has no other owner.
        false => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Creates an epoll instance for rsockets. Returns its descriptor, or -1 with `errno`.
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    entry::number("repoll_create", || {
        if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let epoll = Arc::new(Epoll {
            changed: Wake::new()?,
            kernel: create()?,
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
        if known.is_none() && sockets::find(fd).is_none() {
            drop(list);
            // SAFETY: `event` is null, which the kernel refuses where it is needed, or readable: the
            // caller's contract, section Safety.
            let status = unsafe { libc::epoll_ctl(epoll.kernel.as_raw_fd(), op, fd, event) };
            return match status {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error().into()),
            };
        }
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
            for fd in [epfd, epoll.kernel.as_raw_fd()] {
                fds.push(pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                });
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let found = poll::poll(&mut fds, left)?;
            let kernel_is_ready = fds.pop().is_some_and(|kernel| kernel.revents != 0);
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
            if kernel_is_ready && reported < most {
                // SAFETY: `reported` is below `most`, which is `maxevents`, and `events` points to
                // `maxevents` writable elements: the caller's contract, section Safety.
                reported +=
                    unsafe { collect(&epoll.kernel, events.add(reported), most - reported) }?;
            }
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

/// Stores the events of the kernel's descriptors. Returns their number.
///
/// # Safety
/// `events` must point to `most` writable elements, and `most` must be from 1 to `c_int::MAX`.
unsafe fn collect(kernel: &OwnedFd, events: *mut epoll_event, most: usize) -> Result<usize, Errno> {
    // SAFETY: `events` points to `most` writable elements, and `most` is a positive `c_int`: the
    // contract in section Safety.
    let count = unsafe { libc::epoll_wait(kernel.as_raw_fd(), events, most as c_int, 0) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error().into())
}
