//! Sockets that are one process's own. A forked child has its parent's descriptors, and would keep what
//! they stand for: the slot's name, and the place among those that share port 4791, though the parent has
//! ended and nobody reads there. So it gets others in their place, at once.
//!
//! In their place, and not none: objects of the parent that the child ends close those numbers.

use socket2::Socket;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// A socket that a child does not keep.
#[derive(Debug)]
pub struct ProcessSocket {
    entry: &'static Entry,
    socket: ManuallyDrop<Socket>,
}

/// A place in the list, used again when its socket is closed, and never freed: the child looks
/// through the list whatever its parent's threads were doing.
#[derive(Debug)]
struct Entry {
    /// The descriptor, or [`FREE`].
    fd: AtomicI32,
    /// The number of the file that the descriptor was opened for. Where it is another file's by now, because the
    /// program has closed it, it is neither closed nor replaced.
    inode: AtomicU64,
    next: *const Entry,
}

// SAFETY: `next` is set before others see the entry, and points at one that is never freed.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

const FREE: i32 = -1;

static LIST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// The number of a descriptor's file, if it is open. Sockets have a number each. Async-signal-safe.
fn inode(fd: i32) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is valid for writing, and initialized where fstat succeeds.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_ino) }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    let entry = |at: *const Entry| {
        // SAFETY: null, or one that came from a box and is never freed.
        unsafe { at.as_ref() }
    };
    let first = entry(LIST.load(Ordering::Acquire));
    std::iter::successors(first, move |at| entry(at.next))
}

impl Entry {
    /// An entry with this descriptor.
    fn with(fd: i32) -> &'static Self {
        let entry = Self::listed(fd);
        // A child that is forked before this leaves the descriptor as it is.
        entry.inode.store(inode(fd).unwrap_or(0), Ordering::Release);
        entry
    }

    /// Whether its descriptor is still the file that it was opened for. Async-signal-safe.
    fn is_ours(&self) -> bool {
        let fd = self.fd.load(Ordering::Acquire);
        fd != FREE && inode(fd) == Some(self.inode.load(Ordering::Acquire))
    }

    fn listed(fd: i32) -> &'static Self {
        let take = |entry: &&Self| {
            entry
                .fd
                .compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        if let Some(free) = entries().find(take) {
            return free;
        }
        let entry = Box::leak(Box::new(Entry {
            fd: AtomicI32::new(fd),
            inode: AtomicU64::new(0),
            next: LIST.load(Ordering::Acquire),
        }));
        while let Err(other) = LIST.compare_exchange(
            entry.next.cast_mut(),
            entry,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            entry.next = other;
        }
        entry
    }
}

impl From<Socket> for ProcessSocket {
    fn from(socket: Socket) -> Self {
        ProcessSocket {
            entry: Entry::with(socket.as_raw_fd()),
            socket: ManuallyDrop::new(socket),
        }
    }
}

impl ProcessSocket {
    /// Closes the socket for the network, while its number stays valid for threads that still use it:
    /// from now on it is another socket's, to which nothing ever comes.
    pub fn retire(&self) -> io::Result<()> {
        let kind = self.socket.r#type()?.nonblocking();
        let unbound = Socket::new(self.socket.domain()?, kind, self.socket.protocol()?)?;
        let (new, old) = (unbound.as_raw_fd(), self.socket.as_raw_fd());
        if !self.entry.is_ours() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: both are open sockets of this process, and the second is this object's own.
        if unsafe { libc::dup3(new, old, libc::O_CLOEXEC) } == -1 {
            return Err(io::Error::last_os_error());
        }
        self.entry
            .inode
            .store(inode(old).unwrap_or(0), Ordering::Release);
        Ok(())
    }
}

impl Deref for ProcessSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl Drop for ProcessSocket {
    fn drop(&mut self) {
        let is_ours = self.entry.is_ours();
        // Before it is closed: then the number may be another file's.
        self.entry.fd.store(FREE, Ordering::Release);
        if is_ours {
            // SAFETY: the socket is not used again, as this is its owner's drop.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}

/// This process is a forked child, and the sockets its parent's. Calls nothing that a child of several
/// threads may not call.
pub fn forget() {
    // SAFETY: a system call without arguments that could be wrong.
    let none = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if none < 0 {
        // Out of descriptors, or of memory for one: the child keeps the parent's then.
        return;
    }
    for entry in entries().filter(|entry| entry.is_ours()) {
        let fd = entry.fd.load(Ordering::Acquire);
        // SAFETY: both are open; the second is a socket that only these entries know.
        unsafe { libc::dup3(none, fd, libc::O_CLOEXEC) };
        entry.inode.store(inode(fd).unwrap_or(0), Ordering::Release);
    }
    // SAFETY: it is this function's own.
    unsafe { libc::close(none) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    fn socket() -> ProcessSocket {
        Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap().into()
    }

    fn is_listed(fd: i32) -> bool {
        entries().any(|entry| entry.fd.load(Ordering::Acquire) == fd)
    }

    #[test]
    fn a_socket_is_listed_until_it_is_closed() {
        let (first, second) = (socket(), socket());
        let (a, b) = (first.as_raw_fd(), second.as_raw_fd());
        assert!(is_listed(a) && is_listed(b));
        assert!(!ptr::eq(first.entry, second.entry));
        let entry = first.entry;
        drop(first);
        assert_ne!(entry.fd.load(Ordering::Acquire), a);
        assert!(is_listed(b));
    }

    #[test]
    fn number_that_is_another_files_is_not_closed() {
        let (ours, program) = (
            socket(),
            Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap(),
        );
        let fd = ours.as_raw_fd();
        // SAFETY: both are open. The program's file takes the number, as after it has closed ours.
        assert_eq!(unsafe { libc::dup2(program.as_raw_fd(), fd) }, fd);
        assert!(ours.retire().is_err());
        drop(ours);
        assert_eq!(inode(fd), inode(program.as_raw_fd()));
        // SAFETY: the copy that was made above, which nothing else uses.
        unsafe { libc::close(fd) };
    }
}
