//! Waking the progress thread, as its hand-off with the program's threads requires.

use crate::loss::{ClosedDescriptors, is_loss};
use crate::scheduling::handoff::Handoff;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use urxe_net::thread;
use urxe_proto::time::Time;

/// The hand-off between the progress thread and the program's threads, with the descriptor that
/// wakes the thread.
#[derive(Debug)]
pub(crate) struct Waker {
    handoff: Handoff,
    /// Readable when the thread must wake. Present once the thread exists.
    event: OnceLock<OwnedFd>,
    loss: Arc<ClosedDescriptors>,
}

impl Waker {
    pub(crate) fn new(loss: &Arc<ClosedDescriptors>) -> Self {
        Waker {
            handoff: Handoff::new(),
            event: OnceLock::new(),
            loss: Arc::clone(loss),
        }
    }

    /// Returns the hand-off.
    pub(crate) fn handoff(&self) -> &Handoff {
        &self.handoff
    }

    /// Returns the descriptor that [`Waker::wake`] makes readable. The first call creates it.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub(crate) fn open(&self) -> io::Result<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // A thread that opened it first has set its own.
            let _ = self.event.set(event);
        }
        Ok(self.event.get().expect("it is set above").as_fd())
    }

    /// Wakes the progress thread, which has work to do at once. Not a cancellation point.
    pub(crate) fn wake(&self) {
        if let Some(event) = self.event.get()
            && !self.loss.is_lost()
            && let Err(error) =
                thread::without_cancellation(|| rustix::io::write(event, &1_u64.to_ne_bytes()))
            && is_loss(&error.into())
        {
            self.loss.report();
        }
    }

    /// Makes the descriptor not readable.
    pub(crate) fn clear(&self) {
        if let Some(event) = self.event.get() {
            // There is nothing to read if another descriptor woke the thread.
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
        }
    }

    /// Wakes the progress thread if it would sleep past `at`, when there is work to do.
    pub(crate) fn deadline_moved(&self, at: Time) {
        if self.handoff.deadline_moved(at) {
            self.wake();
        }
    }

    /// Counts a completion queue that the program armed: it may sleep outside urxe's calls.
    pub(crate) fn arm(&self) {
        if self.handoff.arm() {
            self.wake();
        }
    }

    /// Records that the program armed a completion queue that is armed already.
    pub(crate) fn rearm(&self) {
        if self.handoff.rearm() {
            self.wake();
        }
    }
}
