//! Queue pairs with sends that wait for more, see `qp::gathered`, and with acknowledgements that wait for an
//! answer, see `qp::answering`.
//!
//! The program's next poll sends the former, its next poll in vain the latter, its next wait both; a post that makes
//! enough of them, or an end of the queue pair, does too. Acknowledgements wait only while the progress thread looks in
//! every millisecond. With sends left lying, a program that does none of these is helped out by the progress thread, which an alarm wakes. A timer that
//! the kernel keeps can be set from any thread without waking the one that waits for it, and while a
//! program goes on posting it is put off again and again before it goes off: a system call in 100 us, and
//! no wakeup.

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

/// The queue pairs, and the alarm.
pub(super) type Gathering = Waiting<Arc<Qp>, Timer>;

impl Gathering {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Waiting::with(Timer(timer)))
    }
}

/// A timer of the kernel's.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

/// Readable when it has gone off.
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
            // The setting is valid: the descriptor is closed, or is no timer's any more.
            super::get().lost_descriptors();
        }
    }

    fn silence(&self) {
        // Where the program has closed the descriptor, the number may be that of another file, whose contents
        // are not the library's to read.
        if timerfd_gettime(&self.0).is_ok() {
            // Nothing is there to read if it was put off at this moment.
            let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
        }
    }
}

impl Engine {
    /// How often the program has polled, if sends may wait for more: not while it waits for a
    /// completion in its own way, of which nobody here hears.
    pub(crate) fn polls_unless_armed(&self) -> Option<u64> {
        (!self.handover.is_armed()).then(|| self.polling.polls())
    }

    /// A queue pair's sends have begun to wait at `now`. `is_listed` says whether this was called for it
    /// before, and [`Qp::send_gathered`] not since.
    pub(crate) fn gather(&self, qp: &Arc<Qp>, is_listed: bool, now: Time) {
        if let Some(network) = self.network.get() {
            let new = (!is_listed).then(|| Arc::clone(qp));
            network.gathering.add(new, now);
        }
    }

    /// Whether acknowledgements may wait: the progress thread sleeps for a moment only.
    pub(crate) fn may_hold_acks(&self) -> bool {
        self.handover.may_wait_for_look()
    }

    /// A queue pair's acknowledgement begins to wait. False if it may not any more: the progress thread looks at the
    /// list after it has said that it will sleep for longer.
    pub(crate) fn hold_ack(&self, qp: &Arc<Qp>) -> bool {
        if let Some(network) = self.network.get() {
            network.gathering.add_ack(Arc::clone(qp));
        }
        self.may_hold_acks()
    }

    /// The program has come back, for a while: all that waits goes out. No lock may be held.
    pub(crate) fn send_gathered(&self) {
        self.send_acks();
        self.send_posted();
    }

    /// The program has come back, and may answer messages yet: what it has posted goes out. No lock may be held.
    pub(super) fn send_posted(&self) {
        if let Some(network) = self.network.get() {
            let send = |qp: Arc<Qp>| qp.send_gathered(false, regions().table());
            network.gathering.take_all(send);
            self.passage_cleared();
        }
    }

    /// The program answers no message any more that it has: the acknowledgements go out. No lock may be held.
    pub(super) fn send_acks(&self) {
        if let Some(network) = self.network.get() {
            network.gathering.take_acks(send_ack);
        }
    }

    /// The program has not come back in time, and the alarm has gone off.
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

    /// Whether the alarm goes off within so many milliseconds.
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
