//! Queue pairs with deferred sends (`qp::gathered`) and with held acknowledgements
//! (`qp::answering`).
//!
//! The program's next poll sends the deferred sends. Its next poll that finds no completion sends
//! the held acknowledgements, and its next blocking wait sends both. So does a post that fills the
//! batch, or the end of the queue pair. Acknowledgements are held only while the progress thread
//! checks every few milliseconds.
//!
//! If the program makes no such call, a flush timer wakes the progress thread, which sends the
//! deferred sends. It is a kernel timer (timerfd_create(2)): any thread can set it without waking
//! the thread that watches it. While the program keeps posting, the timer is moved before it
//! expires. That costs a system call in 100 us, and no wake-up.

use super::Engine;
use super::waiting::{Alarm, Waiting};
use crate::qp::Qp;
use crate::regions::regions;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_gettime, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use urxe_proto::time::Time;

/// The queue pairs with deferred sends or held acknowledgements, and the flush timer.
pub(super) type Gathering = Waiting<Arc<Qp>, Timer>;

impl Gathering {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Waiting::with(Timer(timer)))
    }
}

/// A timer of the kernel, timerfd_create(2).
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

/// Readable when the timer has expired.
impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Alarm for Timer {
    fn set(&self, at: Time) {
        let setting = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: (at.0 / 1_000_000_000) as i64,
                tv_nsec: (at.0 % 1_000_000_000) as _,
            },
        };
        if let Err(error) = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &setting) {
            tracing::warn!(%error, "a timer could not be set");
            // The setting is valid, so the descriptor is closed, or is no timer any more.
            super::get().lost_descriptors();
        }
    }

    fn silence(&self) {
        // If the program has closed the descriptor, the number may belong to another file, which
        // the library must not read.
        if timerfd_gettime(&self.0).is_ok() {
            // There is nothing to read if the timer was moved at the same time.
            let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
        }
    }
}

impl Engine {
    /// Returns the number of polls so far if sends may be deferred, or else `None`: while a
    /// completion queue is armed, the program may sleep outside urxe's calls, so no call would send
    /// them.
    pub(crate) fn polls_unless_armed(&self) -> Option<u64> {
        (!self.handover.is_armed()).then(|| self.polling.polls())
    }

    /// Notes that sends of a queue pair are deferred from `now` on. `is_listed` says that the queue
    /// pair is on the list: this was called for it, and [`Qp::send_gathered`] not since.
    pub(crate) fn gather(&self, qp: &Arc<Qp>, is_listed: bool, now: Time) {
        if let Some(network) = self.network.get() {
            let new = (!is_listed).then(|| Arc::clone(qp));
            network.gathering.add(new, now);
        }
    }

    /// Returns whether acknowledgements may be held: the progress thread checks every few
    /// milliseconds.
    pub(crate) fn may_hold_acks(&self) -> bool {
        self.handover.may_wait_for_look()
    }

    /// Adds a queue pair with a held acknowledgement. Returns false if it may no longer be held:
    /// the progress thread reads the list after it has stored that it sleeps for longer.
    pub(crate) fn hold_ack(&self, qp: &Arc<Qp>) -> bool {
        if let Some(network) = self.network.get() {
            network.gathering.add_ack(Arc::clone(qp));
        }
        self.may_hold_acks()
    }

    /// Sends all deferred sends and held acknowledgements. The caller must hold no lock.
    pub(crate) fn send_gathered(&self) {
        self.send_acks();
        self.send_posted();
    }

    /// Sends the deferred sends only: the program has come back, and may still answer messages. The
    /// caller must hold no lock.
    pub(super) fn send_posted(&self) {
        if let Some(network) = self.network.get() {
            let send = |qp: Arc<Qp>| qp.send_gathered(false, regions().table());
            network.gathering.take_all(send);
            self.passage_cleared();
        }
    }

    /// Sends the held acknowledgements: the program has answered what it will answer. The caller
    /// must hold no lock.
    pub(super) fn send_acks(&self) {
        if let Some(network) = self.network.get() {
            network.gathering.take_acks(send_ack);
        }
    }

    /// Sends the deferred sends after the flush timer has expired.
    pub(super) fn send_left_lying(&self) {
        if let Some(network) = self.network.get() {
            let send = |qp: Arc<Qp>| qp.send_gathered(true, regions().table());
            network.gathering.take_left_lying(send);
        }
    }
}

fn send_ack(qp: Arc<Qp>) {
    qp.send_held(regions().table());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use urxe_net::now;

    /// Returns whether the flush timer expires within `milliseconds`.
    fn rings(gathering: &Gathering, milliseconds: i64) -> bool {
        let mut fds = [PollFd::new(gathering.alarm(), PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: milliseconds * 1_000_000,
        };
        poll(&mut fds, Some(&timeout)).unwrap() > 0
    }

    #[test]
    fn the_alarm_goes_off_once_for_sends_that_are_left_lying() {
        let gathering = Gathering::new().unwrap();
        assert!(!rings(&gathering, 2));
        gathering.add(None, now());
        assert!(rings(&gathering, 900));
        gathering.take_left_lying(|_| ());
        assert!(!rings(&gathering, 2));
        gathering.add(None, now());
        assert!(rings(&gathering, 900));
    }
}
