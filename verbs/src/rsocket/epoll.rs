//! epoll for rsockets, other epoll instances and kernel descriptors.
//!
//! An instance has a list of rsockets and instances, which are polled, and an epoll instance of the
//! kernel with all other descriptors. Thus the kernel decides which events these have, and removes
//! a descriptor when it is closed.

use std::collections::HashMap;
use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event};

use super::wait::{self, Watching, readable, revents, system_poll};
use crate::entry;
use crate::errno::Errno;
use urxe_rsockets::watch::{Signals, Watchers};
use urxe_rsockets::{self as sockets, Socket};

/// The number of events that are taken from the kernel's instance at once.
const BATCH: usize = 64;

/// An epoll instance.
pub(super) struct Epoll {
    /// The kernel's instance, with the other descriptors. Its number is that of this instance.
    kernel: OwnedFd,
    /// Locked before the lists of the instances in it, and before the sockets.
    list: Mutex<List>,
    /// The threads that wait for this instance.
    watchers: Arc<Watchers>,
}

#[derive(Default)]
struct List {
    /// In the order in which they are reported: an entry moves to the end when it is reported.
    entries: Vec<Entry>,
    /// Whether kernel descriptors are reported first at the next call.
    kernel_first: bool,
}

struct Entry {
    fd: RawFd,
    item: Item,
    /// The process that added it. A forked child has none of its parent's sockets.
    process: u32,
    events: u32,
    data: u64,
    /// Whether it was reported with `EPOLLONESHOT`, and is disabled until modified.
    silent: bool,
    /// The signals and the events at the last report.
    reported: Option<(Signals, u32)>,
    /// Whether it is among the events of the current call.
    taken: bool,
}

enum Item {
    Socket(Socket),
    Epoll(Arc<Epoll>),
}

impl Entry {
    /// Returns whether it can have events in this process.
    fn is_enabled(&self, process: u32) -> bool {
        !self.silent && (self.process == process || matches!(self.item, Item::Epoll(_)))
    }

    fn has(&self, flag: c_int) -> bool {
        self.events & flag.cast_unsigned() != 0
    }

    /// Returns the events to report, and the signals until then; `None` if there are no new events.
    fn ready(&self, process: u32) -> Result<Option<(u32, Signals)>, Errno> {
        if !self.is_enabled(process) {
            return Ok(None);
        }
        let (events, signals) = match &self.item {
            Item::Socket(socket) => {
                let ready = socket.ready();
                // poll and epoll use the same bits.
                let bits = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP;
                let found = revents(&ready, (self.events & bits.cast_unsigned()) as c_short);
                (u32::from(found.cast_unsigned()), Some(ready.signals))
            }
            // Level-triggered: the kernel does not count the signals of its descriptors.
            Item::Epoll(epoll) if self.has(EPOLLIN) && epoll.is_ready()? => {
                (EPOLLIN.cast_unsigned(), None)
            }
            Item::Epoll(_) => (0, None),
        };
        let is_new = match (signals, self.reported) {
            (Some(signals), Some((reported, before))) if self.has(libc::EPOLLET) => {
                signals.state != reported.state
                    || self.has(EPOLLIN | EPOLLRDHUP) && signals.input != reported.input
                    || self.has(EPOLLOUT) && signals.output != reported.output
                    // Reported only after the data, and may follow its signal.
                    || events & !before & libc::EPOLLHUP.cast_unsigned() != 0
            }
            _ => true,
        };
        Ok((events != 0 && is_new).then(|| (events, signals.unwrap_or_default())))
    }

    /// Returns the event to report, if any, and remembers the report.
    fn take(&mut self, process: u32) -> Result<Option<epoll_event>, Errno> {
        let Some((events, signals)) = self.ready(process)? else {
            return Ok(None);
        };
        self.silent = self.has(libc::EPOLLONESHOT);
        self.reported = Some((signals, events));
        self.taken = true;
        Ok(Some(epoll_event {
            events,
            u64: self.data,
        }))
    }
}

impl Epoll {
    /// Returns whether a wait would return an event.
    pub(super) fn is_ready(&self) -> Result<bool, Errno> {
        let process = process::id();
        for entry in &lock(&self.list).entries {
            if entry.ready(process)?.is_some() {
                return Ok(true);
            }
        }
        Ok(system_poll(&mut [readable(self.kernel.as_raw_fd())], 0)? > 0)
    }

    /// Adds all that causes events of this instance.
    pub(super) fn watch(&self, watching: &mut Watching) {
        watching.add_watchers(&self.watchers);
        watching.add_descriptor(readable(self.kernel.as_raw_fd()));
        let process = process::id();
        let list = lock(&self.list);
        for entry in list
            .entries
            .iter()
            .filter(|entry| entry.is_enabled(process))
        {
            match &entry.item {
                Item::Socket(socket) => watching.add_socket(socket),
                Item::Epoll(epoll) if entry.has(EPOLLIN) => epoll.watch(watching),
                Item::Epoll(_) => {}
            }
        }
    }

    /// Returns up to `most` events. Kernel descriptors and others come first in turn, so that
    /// neither kind waits for the other for ever.
    fn take(&self, most: usize) -> Result<Vec<epoll_event>, Errno> {
        let process = process::id();
        let mut list = lock(&self.list);
        let mut found = Vec::new();
        if list.kernel_first {
            self.take_from_kernel(&mut found, most)?;
        }
        for entry in &mut list.entries {
            if found.len() == most {
                break;
            }
            found.extend(entry.take(process)?);
        }
        if !list.kernel_first {
            self.take_from_kernel(&mut found, most)?;
        }
        if !found.is_empty() {
            list.kernel_first = !list.kernel_first;
            list.entries.sort_by_key(|entry| entry.taken);
            for entry in &mut list.entries {
                entry.taken = false;
            }
        }
        Ok(found)
    }

    /// Adds events of kernel descriptors, as long as there are fewer than `most`.
    fn take_from_kernel(&self, found: &mut Vec<epoll_event>, most: usize) -> Result<(), Errno> {
        let mut events = [epoll_event { events: 0, u64: 0 }; BATCH];
        let room = BATCH.min(most - found.len());
        if room == 0 {
            return Ok(());
        }
        // SAFETY: `events` has `BATCH` elements, and `room` is from 1 to `BATCH`.
        let count = unsafe {
            libc::epoll_wait(
                self.kernel.as_raw_fd(),
                events.as_mut_ptr(),
                room as c_int,
                0,
            )
        };
        let count = usize::try_from(count).map_err(|_| std::io::Error::last_os_error())?;
        found.extend(&events[..count]);
        Ok(())
    }

    /// Returns whether this instance is, or has in it, the other.
    fn reaches(&self, other: &Epoll) -> bool {
        std::ptr::eq(self, other)
            || lock(&self.list)
                .entries
                .iter()
                .any(|entry| match &entry.item {
                    Item::Epoll(epoll) => epoll.reaches(other),
                    Item::Socket(_) => false,
                })
    }

    /// Changes the list. Returns false if the descriptor is for the kernel's instance.
    fn control(
        self: &Arc<Self>,
        op: c_int,
        fd: RawFd,
        event: Option<epoll_event>,
    ) -> Result<bool, Errno> {
        // Held so that two calls cannot put two instances into each other.
        let epolls = lock(&EPOLLS);
        let inner = epolls.as_ref().and_then(|epolls| epolls.get(&fd)).cloned();
        if let Some(inner) = &inner
            && op == libc::EPOLL_CTL_ADD
            && inner.reaches(self)
        {
            return Err(Errno(libc::ELOOP));
        }
        let mut list = lock(&self.list);
        let known = list.entries.iter().position(|entry| entry.fd == fd);
        let item = match inner {
            Some(epoll) => Some(Item::Epoll(epoll)),
            None => sockets::find(fd).map(Item::Socket),
        };
        if let Some(Item::Socket(socket)) = &item
            && socket.is_inherited()
            && op != libc::EPOLL_CTL_DEL
        {
            return Err(Errno(libc::EBADF));
        }
        if known.is_none() && item.is_none() {
            return Ok(false);
        }
        let event = || event.ok_or(Errno(libc::EFAULT));
        match (op, known, item) {
            (libc::EPOLL_CTL_ADD, None, Some(item)) => {
                let event = event()?;
                list.entries.push(Entry {
                    fd,
                    item,
                    process: process::id(),
                    events: event.events,
                    data: event.u64,
                    silent: false,
                    reported: None,
                    taken: false,
                });
            }
            (libc::EPOLL_CTL_ADD, _, _) => return Err(Errno(libc::EEXIST)),
            (libc::EPOLL_CTL_MOD, Some(at), _) => {
                let event = event()?;
                let entry = &mut list.entries[at];
                (entry.events, entry.data) = (event.events, event.u64);
                (entry.silent, entry.reported) = (false, None);
            }
            (libc::EPOLL_CTL_DEL, Some(at), _) => drop(list.entries.remove(at)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None, _) => {
                return Err(Errno(libc::ENOENT));
            }
            _ => return Err(Errno(libc::EINVAL)),
        }
        drop(list);
        self.watchers.notify();
        Ok(true)
    }
}

static EPOLLS: Mutex<Option<HashMap<RawFd, Arc<Epoll>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the instance with this number.
pub(super) fn find(number: c_int) -> Option<Arc<Epoll>> {
    let epolls = lock(&EPOLLS);
    epolls.as_ref()?.get(&number).cloned()
}

/// Closes an epoll instance.
///
/// # Errors
/// `EBADF` if there is none of this number.
pub(super) fn close(number: c_int) -> Result<(), Errno> {
    let mut epolls = lock(&EPOLLS);
    let removed = epolls.as_mut().and_then(|epolls| epolls.remove(&number));
    drop(epolls);
    if removed.is_some() {
        forget(number);
    }
    removed.map(drop).ok_or(Errno(libc::EBADF))
}

/// Removes a closed rsocket or instance from all epoll instances, as the kernel removes a closed
/// descriptor.
///
/// The caller must not have freed its number yet, which the next descriptor may have.
pub(super) fn forget(closed: RawFd) {
    let epolls = lock(&EPOLLS);
    for epoll in epolls.iter().flat_map(HashMap::values) {
        lock(&epoll.list).entries.retain(|entry| entry.fd != closed);
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
            kernel: create()?,
            list: Mutex::default(),
            watchers: Arc::default(),
        });
        let number = epoll.kernel.as_raw_fd();
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
        let epoll = find(epfd).ok_or(Errno(libc::EBADF))?;
        if epfd == fd {
            return Err(Errno(libc::EINVAL));
        }
        let given = (!event.is_null()).then(|| {
            // SAFETY: `event` is not null, and readable: the caller's contract, section Safety.
            unsafe { event.read_unaligned() }
        });
        if epoll.control(op, fd, given)? {
            return Ok(());
        }
        // SAFETY: `event` is null, which the kernel refuses where it is needed, or readable: the
        // caller's contract, section Safety.
        match unsafe { libc::epoll_ctl(epoll.kernel.as_raw_fd(), op, fd, event) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
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
        let epoll = find(epfd).ok_or(Errno(libc::EBADF))?;
        let most = usize::try_from(maxevents).map_err(|_| Errno(libc::EINVAL))?;
        if most == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let mut found = Vec::new();
        wait::wait(
            timeout,
            || {
                found = epoll.take(most)?;
                Ok(found.len())
            },
            |watching| epoll.watch(watching),
        )?;
        for (at, event) in found.iter().enumerate() {
            // SAFETY: `at` is below `maxevents`, since `take` returns at most `most` events, and
            // `events` points to `maxevents` writable elements: the caller's contract, section
            // Safety.
            unsafe { events.add(at).write_unaligned(*event) };
        }
        Ok(found.len() as c_int)
    })
}
