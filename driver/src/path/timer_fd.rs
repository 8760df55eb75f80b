//! One-shot timers of the kernel, timerfd_create(2).
//!
//! Any thread can move one without waking the thread that watches it.

use crate::loss::ClosedDescriptors;
use crate::scheduling::one_shot::OneShotTimer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_gettime, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use urxe_proto::time::Time;

/// A timer of the kernel, timerfd_create(2).
#[derive(Debug)]
pub(super) struct TimerFd {
    fd: OwnedFd,
    loss: Arc<ClosedDescriptors>,
}

impl TimerFd {
    pub(super) fn new(loss: &Arc<ClosedDescriptors>) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(TimerFd {
            fd: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            loss: Arc::clone(loss),
        })
    }
}

impl TimerFd {
    /// Returns whether the timer has expired.
    pub(super) fn has_expired(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }
}

/// Readable when the timer has expired.
impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl OneShotTimer for TimerFd {
    fn set(&self, at: Time) {
        let setting = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: (at.0 / 1_000_000_000) as i64,
                tv_nsec: (at.0 % 1_000_000_000) as _,
            },
        };
        if let Err(error) = timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &setting) {
            tracing::warn!(%error, "a timer could not be set");
            // The setting is valid, so the descriptor is closed, or is no timer any more.
            self.loss.report();
        }
    }

    fn clear(&self) {
        // If the program has closed the descriptor, the number may belong to another file, which
        // the library must not read.
        if timerfd_gettime(&self.fd).is_ok() {
            // There is nothing to read if the timer was moved at the same time.
            let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::deferred::Deferred;
    use urxe_net::now;

    /// Returns whether the flush timer expires within `milliseconds`.
    fn expires(deferred: &Deferred<(), TimerFd>, milliseconds: i64) -> bool {
        let mut fds = [PollFd::new(deferred.timer(), PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: milliseconds * 1_000_000,
        };
        poll(&mut fds, Some(&timeout)).unwrap() > 0
    }

    #[test]
    fn the_flush_timer_expires_once_for_deferred_sends() {
        let deferred = Deferred::with(TimerFd::new(&Arc::default()).unwrap());
        assert!(!expires(&deferred, 2));
        deferred.add(None, now());
        assert!(expires(&deferred, 900));
        deferred.take_expired(|_| ());
        assert!(!expires(&deferred, 2));
        deferred.add(None, now());
        assert!(expires(&deferred, 900));
    }
}
