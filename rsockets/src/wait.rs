//! Waiting for completions. Of the threads that wait for a socket, one waits in the driver, which
//! also receives packets. The others wait on a condition variable until that thread reports a
//! change.

use crate::error::Error;
use crate::settings::defaults;
use crate::sync::lock;
use crate::watch::{Signals, Watchers};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use urxe_driver::{Channel, Cq};

/// The state that a socket's threads wait for.
pub(super) trait Waitable {
    /// Processes completions. Returns whether the state changed.
    fn process(&mut self) -> bool;

    /// Returns what [`Waiters::process`] compares before and after.
    fn progress(&self) -> Progress;

    /// Requests a notification of the next completion.
    fn arm(&self);
}

/// The part of a state from which new signals follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Progress {
    /// The messages that the program has not read.
    pub unread: usize,
    /// Whether there is room to send.
    pub can_send: bool,
    /// The directions in which the connection has ended, and whether it has failed, a bit each.
    pub ended: u8,
}

/// The threads that wait for a state behind a mutex.
#[derive(Debug)]
pub(super) struct Waiters {
    channel: Arc<Channel>,
    changed: Condvar,
    /// Whether a thread waits in the driver. Changes only under the mutex.
    in_driver: AtomicBool,
    /// [`Progress::ended`] at the last signal. Changes only under the mutex.
    ended: AtomicU8,
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
            ended: AtomicU8::new(0),
            watchers: Arc::clone(watchers),
        })
    }

    /// Returns the completion channel.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Reports a change other than a completion. The caller holds the lock of the state if the
    /// change is a new signal.
    pub fn wake(&self, new: Signals) {
        self.changed.notify_all();
        self.watchers.signal(new);
    }

    /// Reports a change other than a completion, also to a thread that waits in the driver.
    pub fn interrupt(&self, any: &Arc<Cq>, new: Signals) {
        self.channel.push(Arc::clone(any));
        self.wake(new);
    }

    /// Processes completions and wakes the waiters on a change, also on one of the state that the
    /// caller made before.
    pub fn process(&self, state: &mut impl Waitable) -> bool {
        let before = state.progress();
        let changed = state.process();
        let after = state.progress();
        let ended = self.ended.swap(after.ended, Ordering::Relaxed) != after.ended;
        if changed || ended {
            self.wake(Signals {
                input: u64::from(after.unread > before.unread),
                output: u64::from(after.can_send && !before.can_send),
                state: u64::from(ended),
            });
        }
        changed
    }

    /// Returns the signals so far. They agree with the state while its lock is held.
    pub fn signals(&self) -> Signals {
        self.watchers.signals()
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
