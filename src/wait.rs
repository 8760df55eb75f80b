//! Waiting on the descriptors of completion queues and events, without end or until a deadline.
#![forbid(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use urxe_driver::event_queue::EventQueue;

/// Takes a lock whose data is never left half changed by a panic.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The deadline that lies `timeout` ahead; `None` for one beyond what the clock can tell.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// What `next` gives, for as long as that takes.
pub(crate) fn endlessly<T, E>(mut next: impl FnMut() -> Result<Option<T>, E>) -> Result<T, E> {
    loop {
        if let Some(given) = next()? {
            return Ok(given);
        }
    }
}

/// A right that one thread has at a time, and that others wait for no longer than they want to.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

impl Turn {
    /// Takes it, waiting until `until` if that is given: then `None`.
    pub(crate) fn take(&self, until: Option<Instant>) -> Option<TurnTaken<'_>> {
        let mut taken = lock(&self.taken);
        while *taken {
            taken = match until {
                None => self
                    .free
                    .wait(taken)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.free.wait_timeout(taken, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *taken = true;
        Some(TurnTaken(self))
    }
}

/// The right, until this is dropped.
#[derive(Debug)]
pub(crate) struct TurnTaken<'a>(&'a Turn);

impl Drop for TurnTaken<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) = false;
        self.0.free.notify_one();
    }
}

/// Takes the next event, waiting until there is one or, with `until`, until that time: then `None`.
/// Only one thread may take from `queue` at a time.
pub(crate) fn next<T>(queue: &EventQueue<T>, until: Option<Instant>) -> io::Result<Option<T>> {
    loop {
        // Without a deadline the queue itself waits, and does the work of the network meanwhile.
        if until.is_some() && !readable(queue, until)? {
            return Ok(None);
        }
        match queue.next() {
            Ok(event) => return Ok(Some(event)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The program has made the descriptor non-blocking, which is its business.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !readable(queue, until)? {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether the queue's descriptor became readable before `until`.
fn readable<T>(queue: &EventQueue<T>, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::from_borrowed_fd(queue.fd(), PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
