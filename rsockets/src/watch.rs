//! Wakes threads that wait for several sockets. Each waiting thread has a descriptor, which becomes
//! readable on a change of one of its sockets, whichever thread causes it.

use crate::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::{Arc, Mutex, Weak};

thread_local! {
    /// The descriptor of this thread, and the process that created it: a forked child would share
    /// the parent's, and consume its readiness.
    static OF_THREAD: RefCell<Option<(u32, Arc<Wake>)>> = const { RefCell::new(None) };
}

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

    /// Returns the descriptor of the calling thread, created by the first call.
    ///
    /// # Errors
    /// Fails if the process has no descriptors left.
    pub fn of_thread() -> io::Result<Arc<Wake>> {
        let of_thread = OF_THREAD.try_with(|cell| {
            let mut stored = cell.borrow_mut();
            match &*stored {
                Some((process, wake)) if *process == process::id() => Ok(Arc::clone(wake)),
                _ => {
                    let wake = Wake::new()?;
                    // The parent's is not dropped: its number may be another file's in this
                    // process.
                    std::mem::forget(stored.replace((process::id(), Arc::clone(&wake))));
                    Ok(wake)
                }
            }
        });
        // The thread's variables are gone if a destructor of another of them waits.
        of_thread.unwrap_or_else(|_| Wake::new())
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

/// The number of times that the readiness of a socket was newly signalled, by kind. An
/// edge-triggered wait compares it with the value at its last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signals {
    /// Data or a connection arrived.
    pub input: u64,
    /// Room to send became free.
    pub output: u64,
    /// The connection was established, or ended in a direction or both.
    pub state: u64,
}

impl Signals {
    /// Data or a connection arrived.
    pub(super) const INPUT: Self = Self {
        input: 1,
        output: 0,
        state: 0,
    };
    /// The connection was established, or ended.
    pub(super) const STATE: Self = Self {
        input: 0,
        output: 0,
        state: 1,
    };
}

/// The threads that wait for several sockets including this one.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    threads: Vec<Weak<Wake>>,
    signals: Signals,
}

impl Watchers {
    /// Adds a thread.
    pub fn add(&self, wake: &Arc<Wake>) {
        lock(&self.0).threads.push(Arc::downgrade(wake));
    }

    /// Removes a thread.
    pub fn remove(&self, wake: &Arc<Wake>) {
        lock(&self.0).threads.retain(|other| {
            other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(wake))
        });
    }

    /// Wakes all threads.
    pub fn notify(&self) {
        self.signal(Signals::default());
    }

    /// Adds to the signals, and wakes all threads.
    pub(super) fn signal(&self, new: Signals) {
        let mut watched = lock(&self.0);
        let signals = &mut watched.signals;
        signals.input += new.input;
        signals.output += new.output;
        signals.state += new.state;
        for wake in watched.threads.iter().filter_map(Weak::upgrade) {
            wake.wake();
        }
    }

    /// Returns the signals so far.
    pub(super) fn signals(&self) -> Signals {
        lock(&self.0).signals
    }
}
