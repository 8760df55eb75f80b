//! Waking those who wait for several sockets at once. Each brings a descriptor, which becomes readable
//! when something changes on one of its sockets, whichever thread saw to it.

use crate::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// The descriptor of one who waits.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// A new one.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Arc<Wake>> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Wake(fd)))
    }

    /// Readable when something changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// What changed up to now is known.
    pub fn clear(&self) {
        // There may be nothing.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }

    /// Something changed.
    pub fn wake(&self) {
        // It could fail only if it were readable anyhow.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Those who wait for a socket, among others.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<Vec<Weak<Wake>>>);

impl Watchers {
    /// One more.
    pub fn add(&self, wake: &Arc<Wake>) {
        lock(&self.0).push(Arc::downgrade(wake));
    }

    /// It waits no more.
    pub fn remove(&self, wake: &Arc<Wake>) {
        lock(&self.0).retain(|other| {
            other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(wake))
        });
    }

    /// Wakes all.
    pub(super) fn notify(&self) {
        for wake in lock(&self.0).iter().filter_map(Weak::upgrade) {
            wake.wake();
        }
    }
}
