//! Wakes threads that wait for several sockets. Each waiting thread has a descriptor, which becomes
//! readable on a change of one of its sockets, whichever thread causes it.

use crate::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// The descriptor of a waiting thread.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// Creates a descriptor.
    ///
    /// # Errors
    /// Fails if the process has no descriptors left.
    pub fn new() -> io::Result<Arc<Wake>> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Wake(fd)))
    }

    /// Returns the descriptor, which is readable after a change.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Clears the readiness.
    pub fn clear(&self) {
        // Fails if the descriptor is not readable.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        // Fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// The threads that wait for several sockets including this one.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<Vec<Weak<Wake>>>);

impl Watchers {
    /// Adds a thread.
    pub fn add(&self, wake: &Arc<Wake>) {
        lock(&self.0).push(Arc::downgrade(wake));
    }

    /// Removes a thread.
    pub fn remove(&self, wake: &Arc<Wake>) {
        lock(&self.0).retain(|other| {
            other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(wake))
        });
    }

    /// Wakes all threads.
    pub(super) fn notify(&self) {
        for wake in lock(&self.0).iter().filter_map(Weak::upgrade) {
            wake.wake();
        }
    }
}
