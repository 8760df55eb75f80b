//! Waiting for completions. Of the threads that wait for a socket one waits in the driver, which receives
//! meanwhile; the others wait for that one. Whoever changes something wakes them, and those who wait for
//! several sockets.

use crate::error::Error;
use crate::lock;
use crate::settings::defaults;
use crate::watch::Watchers;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use urxe_driver::{Channel, Cq};

/// What a socket's threads wait for.
pub(super) trait Waited {
    /// Does what there is to do. True when something changed.
    fn process(&mut self) -> bool;

    /// Asks for a notification of the next completion.
    fn arm(&self);
}

/// Those who wait for what a lock is over.
#[derive(Debug)]
pub(super) struct Waiters {
    channel: Arc<Channel>,
    changed: Condvar,
    /// A thread waits in the driver. Changes only under the lock.
    in_driver: AtomicBool,
    watchers: Arc<Watchers>,
}

impl Waiters {
    /// Nobody yet.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(watchers: &Arc<Watchers>) -> Result<Waiters, Error> {
        Ok(Waiters {
            channel: Arc::new(Channel::new()?),
            changed: Condvar::new(),
            in_driver: AtomicBool::new(false),
            watchers: Arc::clone(watchers),
        })
    }

    /// Where completion queues tell of completions.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Something changed that is no completion.
    pub fn wake(&self) {
        self.changed.notify_all();
        self.watchers.notify();
    }

    /// Something changed that is no completion, and concerns a thread that waits in the driver.
    pub fn interrupt(&self, any: &Arc<Cq>) {
        self.channel.push(Arc::clone(any));
        self.wake();
    }

    /// Does what there is to do, and tells whom it concerns.
    pub fn process(&self, state: &mut impl Waited) -> bool {
        let changed = state.process();
        if changed {
            self.wake();
        }
        changed
    }

    /// Readable when there is something to do, once it was armed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// The descriptor was readable: it shall not be for the same again. A thread that waits in the driver
    /// takes what it says itself.
    pub fn clear<S>(&self, state: &Mutex<S>) {
        let _held = lock(state);
        if !self.in_driver.load(Ordering::Relaxed) {
            while self.channel.take().is_some() {}
        }
    }

    /// Waits until `test` says so.
    ///
    /// # Errors
    /// `EAGAIN` where that would take waiting and must not; `EINTR`; what `test` says.
    pub fn wait<'a, S: Waited>(
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
                // What came before nobody tells of.
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
