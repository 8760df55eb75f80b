//! Sockets that a forked child does not keep. A child inherits its parent's descriptors, and would
//! keep the slot's name and the place in the group of port 4791 after the parent has ended,
//! although it reads from neither. So the child replaces each descriptor at once.
//!
//! It replaces rather than closes them: when the child drops copies of the parent's objects, these
//! close the same descriptor numbers.

use socket2::Socket;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// A socket that a forked child does not keep.
#[derive(Debug)]
pub struct ProcessSocket {
    entry: &'static Entry,
    socket: ManuallyDrop<Socket>,
}

/// An entry of the list. It is reused when its socket is closed, and never freed: the child
/// traverses the list in any state in which the parent's threads left it.
#[derive(Debug)]
struct Entry {
    /// The descriptor, or [`FREE`].
    fd: AtomicI32,
    /// The inode number of the socket. If the descriptor has another one, the program has closed
    /// the socket and reused the number; then the descriptor is neither closed nor replaced.
    inode: AtomicU64,
    next: *const Entry,
}

// SAFETY: `next` does not change after the entry is published, and points to a never-freed entry.
unsafe impl Send for Entry {}
// SAFETY: all fields are atomic except `next`, which does not change after the entry is published
// and points to a never-freed entry.
unsafe impl Sync for Entry {}

const FREE: i32 = -1;

static LIST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// Returns the inode number of an open descriptor. Each socket has its own. Async-signal-safe.
fn inode(fd: i32) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is valid for writing, and initialized if fstat succeeds.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_ino) }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    let entry = |at: *const Entry| {
        // SAFETY: the pointer is null or comes from a leaked box, which is never freed.
        unsafe { at.as_ref() }
    };
    let first = entry(LIST.load(Ordering::Acquire));
    std::iter::successors(first, move |at| entry(at.next))
}

impl Entry {
    /// Returns an entry with this descriptor.
    fn with(fd: i32) -> &'static Self {
        let entry = Self::listed(fd);
        // A child that is forked before this line does not replace the descriptor.
        entry.inode.store(inode(fd).unwrap_or(0), Ordering::Release);
        entry
    }

    /// Whether the descriptor still refers to the socket it was opened for. Async-signal-safe.
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
    /// Closes the socket, while its descriptor number stays valid for threads that still use it:
    /// the number then refers to an unbound socket, which receives nothing.
    pub fn retire(&self) -> io::Result<()> {
        let kind = self.socket.r#type()?.nonblocking();
        let unbound = Socket::new(self.socket.domain()?, kind, self.socket.protocol()?)?;
        let (new, old) = (unbound.as_raw_fd(), self.socket.as_raw_fd());
        if !self.entry.is_ours() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: both descriptors are open, and this object owns the second (checked by
        // `is_ours`).
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
        // Before closing: afterwards the number may refer to another file.
        self.entry.fd.store(FREE, Ordering::Release);
        if is_ours {
            // SAFETY: this is the drop of the owner, so the socket is not used again.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}

/// Replaces the descriptors of the parent's sockets in a forked child. Calls only functions that
/// are permitted in the child of a multi-threaded process (async-signal-safe).
pub fn detach_after_fork() {
    // SAFETY: eventfd takes no pointers.
    let none = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if none < 0 {
        // No descriptor or memory is available: the child keeps the parent's sockets.
        return;
    }
    for entry in entries().filter(|entry| entry.is_ours()) {
        let fd = entry.fd.load(Ordering::Acquire);
        // SAFETY: both descriptors are open, and only this list's entries own the second.
        unsafe { libc::dup3(none, fd, libc::O_CLOEXEC) };
        entry.inode.store(inode(fd).unwrap_or(0), Ordering::Release);
    }
    // SAFETY: this function opened the descriptor, and nothing else uses it.
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
    fn descriptor_reused_by_another_file_is_not_closed() {
        let (ours, program) = (
            socket(),
            Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap(),
        );
        let fd = ours.as_raw_fd();
        // SAFETY: both are open. The program's file takes the number, as if it had closed the
        // socket.
        assert_eq!(unsafe { libc::dup2(program.as_raw_fd(), fd) }, fd);
        assert!(ours.retire().is_err());
        drop(ours);
        assert_eq!(inode(fd), inode(program.as_raw_fd()));
        // SAFETY: the descriptor is the copy made by `dup2`, which nothing else uses.
        unsafe { libc::close(fd) };
    }
}
