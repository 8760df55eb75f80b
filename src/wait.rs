//! Waiting on the descriptors of completion queues and events, with or without a deadline.
#![forbid(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use urxe_driver::event_queue::EventQueue;

/// Locks a mutex whose data is consistent even after a panic, so poisoning is ignored.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The deadline `timeout` from now; `None` if the clock cannot represent it.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Calls `next` until it returns a value.
pub(crate) fn without_deadline<T, E>(
    mut next: impl FnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    loop {
        if let Some(value) = next()? {
            return Ok(value);
        }
    }
}

/// A mutual exclusion whose acquisition can time out.
#[derive(Debug, Default)]
pub(crate) struct TimedLock {
    held: Mutex<bool>,
    released: Condvar,
}

impl TimedLock {
    /// Acquires the lock; `None` if it is still held at `until`.
    pub(crate) fn acquire(&self, until: Option<Instant>) -> Option<TimedLockGuard<'_>> {
        let mut held = lock(&self.held);
        while *held {
            held = match until {
                None => self
                    .released
                    .wait(held)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.released.wait_timeout(held, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *held = true;
        Some(TimedLockGuard(self))
    }
}

/// Releases a [`TimedLock`] when it is dropped.
#[derive(Debug)]
pub(crate) struct TimedLockGuard<'a>(&'a TimedLock);

impl Drop for TimedLockGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.0.held) = false;
        self.0.released.notify_one();
    }
}

/// Takes the next event, waiting until `until`; `None` if none arrives in time.
///
/// Only one thread may take from `queue` at a time.
pub(crate) fn next<T>(queue: &EventQueue<T>, until: Option<Instant>) -> io::Result<Option<T>> {
    loop {
        // Without a deadline the queue itself blocks, and makes progress on the network meanwhile.
        if until.is_some() && !readable(queue, until)? {
            return Ok(None);
        }
        match queue.next() {
            Ok(event) => return Ok(Some(event)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The application has made the descriptor non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !readable(queue, until)? {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Polls the queue's descriptor until `until`, and returns whether it is readable.
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
