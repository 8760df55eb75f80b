//! Waiting for completions. Of the threads that wait for a socket, one waits in the driver, which
//! also receives packets. The others wait on a condition variable until that thread reports a
//! change.

use crate::error::Error;
use crate::settings::defaults;
use crate::sync::lock;
use crate::watch::Watchers;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use urxe_driver::{Channel, Cq};

/// The state that a socket's threads wait for.
pub(super) trait Waitable {
    /// Processes completions. Returns whether the state changed.
    fn process(&mut self) -> bool;

    /// Requests a notification of the next completion.
    fn arm(&self);
}

/// The threads that wait for a state behind a mutex.
#[derive(Debug)]
pub(super) struct Waiters {
    channel: Arc<Channel>,
    changed: Condvar,
    /// Whether a thread waits in the driver. Changes only under the mutex.
    in_driver: AtomicBool,
    watchers: Arc<Watchers>,
}

impl Waiters {
    /// Creates an empty set of waiters.
    ///
    /// # Errors
    /// Fails if the process has no descriptors left.
    pub fn new(watchers: &Arc<Watchers>) -> Result<Waiters, Error> {
        Ok(Waiters {
            channel: Arc::new(Channel::new()?),
            changed: Condvar::new(),
            in_driver: AtomicBool::new(false),
            watchers: Arc::clone(watchers),
        })
    }

    /// Returns the completion channel.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Reports a change other than a completion.
    pub fn wake(&self) {
        self.changed.notify_all();
        self.watchers.notify();
    }

    /// Reports a change other than a completion, also to a thread that waits in the driver.
    pub fn interrupt(&self, any: &Arc<Cq>) {
        self.channel.push(Arc::clone(any));
        self.wake();
    }

    /// Processes completions and wakes the waiters on a change.
    pub fn process(&self, state: &mut impl Waitable) -> bool {
        let changed = state.process();
        if changed {
            self.wake();
        }
        changed
    }

    /// Returns the descriptor that becomes readable on a completion, if armed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Clears the readiness of the descriptor. A thread that waits in the driver takes the events
    /// itself.
    pub fn clear<S>(&self, state: &Mutex<S>) {
        let _held = lock(state);
        if !self.in_driver.load(Ordering::Relaxed) {
            while self.channel.take().is_some() {}
        }
    }

    /// Waits until `test` returns true.
    ///
    /// # Errors
    /// `EAGAIN` if the call is nonblocking and would wait; `EINTR`; errors of `test`.
    pub fn wait<'a, S: Waitable>(
        &self,
        state: &'a Mutex<S>,
        nonblocking: bool,
        test: impl Fn(&S) -> Result<bool, Error>,
    ) -> Result<MutexGuard<'a, S>, Error> {
        let mut held = lock(state);
        let mut polling_since = None;
        loop {
            self.process(&mut *held);
            if test(&held)? {
                return Ok(held);
            }
            if nonblocking {
                return Err(Errno::AGAIN.into());
            }
            let since = *polling_since.get_or_insert_with(Instant::now);
            if since.elapsed() < defaults().polling {
                drop(held);
                held = lock(state);
            } else if self.in_driver.load(Ordering::Relaxed) {
                held = self
                    .changed
                    .wait(held)
                    .unwrap_or_else(PoisonError::into_inner);
            } else {
                held.arm();
                // Completions from before arming cause no notification.
                if self.process(&mut *held) {
                    continue;
                }
                self.in_driver.store(true, Ordering::Relaxed);
                drop(held);
                let event = self.channel.next();
                held = lock(state);
                self.in_driver.store(false, Ordering::Relaxed);
                self.changed.notify_all();
                event?;
            }
        }
    }
}
