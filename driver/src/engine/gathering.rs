//! Queue pairs with sends that wait for more, see `qp::gathered`, and with acknowledgements that wait for an
//! answer, see `qp::answering`.
//!
//! The program's next poll sends the former, its next poll in vain the latter, its next wait both; a post that makes
//! enough of them, or an end of the queue pair, does too. A program that does none of these is helped out by the progress thread, which an alarm wakes. A timer that
//! the kernel keeps can be set from any thread without waking the one that waits for it, and while a
//! program goes on posting it is put off again and again before it goes off: a system call in 100 us, and
//! no wakeup.

use super::Engine;
use crate::event_queue::lock;
use crate::qp::Qp;
use crate::regions::regions;
use crossbeam::utils::CachePadded;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use urxe_proto::time::Time;

/// For how long sends wait at least, and twice that at most, for a program that does not come back.
const PATIENCE: Duration = Duration::from_micros(100);

/// The queue pairs, and the alarm.
#[derive(Debug)]
pub(super) struct Gathering {
    list: Mutex<List>,
    /// Whether there are any with sends, to be read without a lock.
    any_sends: CachePadded<AtomicBool>,
    /// The same of acknowledgements.
    any_acks: CachePadded<AtomicBool>,
    alarm: OwnedFd,
}

#[derive(Debug, Default)]
struct List {
    /// Those with sends.
    sends: VecDeque<Arc<Qp>>,
    /// Those with acknowledgements.
    acks: Vec<Arc<Qp>>,
    /// When the alarm goes off; 0 when it is not known to.
    alarm_at: Time,
}

impl Gathering {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Gathering {
            list: Mutex::default(),
            any_sends: CachePadded::default(),
            any_acks: CachePadded::default(),
            alarm: timerfd_create(TimerfdClockId::Monotonic, flags)?,
        })
    }

    /// Readable when the alarm has gone off.
    pub(super) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// The alarm has gone off, and is silenced.
    pub(super) fn silence(&self) {
        // Nothing is there to read if it was put off at this moment.
        let _ = rustix::io::read(&self.alarm, &mut [0_u8; 8]);
        // Whoever posts from now on sets it anew; who did before is on the list.
        lock(&self.list).alarm_at = Time::default();
    }

    /// Sends have begun to wait at `now`: those of `qp`, or of one that is on the list already.
    fn begin(&self, qp: Option<&Arc<Qp>>, now: Time) {
        let mut list = lock(&self.list);
        if let Some(qp) = qp {
            list.sends.push_back(Arc::clone(qp));
            self.any_sends.store(true, Ordering::Release);
        }
        self.set_alarm(&mut list, now);
    }

    /// An acknowledgement has begun to wait.
    fn hold(&self, qp: Option<&Arc<Qp>>, now: Time) {
        let mut list = lock(&self.list);
        if let Some(qp) = qp {
            list.acks.push(Arc::clone(qp));
            self.any_acks.store(true, Ordering::Release);
        }
        self.set_alarm(&mut list, now);
    }

    /// Under the lock, so that what is noted is what the kernel has.
    fn set_alarm(&self, list: &mut List, now: Time) {
        if list.alarm_at < now + PATIENCE {
            list.alarm_at = now + 2 * PATIENCE;
            set(&self.alarm, list.alarm_at);
        }
    }

    /// Takes the next one with sends off the list.
    fn take(&self) -> Option<Arc<Qp>> {
        let mut list = lock(&self.list);
        let qp = list.sends.pop_front();
        if list.sends.is_empty() {
            self.any_sends.store(false, Ordering::Release);
        }
        qp
    }

    /// Takes those with acknowledgements.
    fn take_acks(&self) -> Vec<Arc<Qp>> {
        if !self.any_acks.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut list = lock(&self.list);
        self.any_acks.store(false, Ordering::Release);
        mem::take(&mut list.acks)
    }

    fn len(&self) -> usize {
        match self.any_sends.load(Ordering::Acquire) {
            true => lock(&self.list).sends.len(),
            false => 0,
        }
    }
}

impl Engine {
    /// How often the program has polled, if sends may wait for more: not while it waits for a
    /// completion in its own way, of which nobody here hears.
    pub(crate) fn polls_unless_armed(&self) -> Option<u64> {
        let is_armed = self.armed.load(Ordering::Relaxed) > 0;
        (!is_armed).then(|| self.polling.polls())
    }

    /// A queue pair's sends have begun to wait at `now`. `is_listed` says whether this was called for it
    /// before, and [`Qp::send_gathered`] not since.
    pub(crate) fn gather(&self, qp: &Arc<Qp>, is_listed: bool, now: Time) {
        if let Some(network) = self.network.get() {
            network.gathering.begin((!is_listed).then_some(qp), now);
        }
    }

    /// A queue pair's acknowledgement has begun to wait at `now`. `is_listed` says whether this was called for
    /// it before, and [`Qp::send_held`] not since.
    pub(crate) fn hold_ack(&self, qp: &Arc<Qp>, is_listed: bool, now: Time) {
        if let Some(network) = self.network.get() {
            network.gathering.hold((!is_listed).then_some(qp), now);
        }
    }

    /// The program has come back, for a while: all that waits goes out. No lock may be held.
    pub(crate) fn send_gathered(&self) {
        self.send_acks();
        self.send_waiting(false);
    }

    /// The program has come back, and may answer messages yet: what it has posted goes out. No lock may be held.
    pub(super) fn send_posted(&self) {
        self.send_waiting(false);
    }

    /// The program has not come back in time.
    pub(super) fn send_left_lying(&self) {
        self.send_acks();
        self.send_waiting(true);
    }

    /// The program answers no message any more that it has: the acknowledgements go out. No lock may be held.
    pub(super) fn send_acks(&self) {
        if let Some(network) = self.network.get() {
            for qp in network.gathering.take_acks() {
                qp.send_held(regions().table());
            }
        }
    }

    fn send_waiting(&self, was_left_lying: bool) {
        let Some(network) = self.network.get() else {
            return;
        };
        // Others may go on posting: no more than there are now.
        for _ in 0..network.gathering.len() {
            let Some(qp) = network.gathering.take() else {
                return;
            };
            qp.send_gathered(was_left_lying, regions().table());
        }
    }
}

/// Sets a timer that goes off once.
fn set(timer: &OwnedFd, at: Time) {
    let setting = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec {
            tv_sec: (at.0 / 1_000_000_000) as i64,
            tv_nsec: (at.0 % 1_000_000_000) as _,
        },
    };
    if let Err(error) = timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &setting) {
        tracing::warn!(%error, "a timer could not be set");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::now;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Whether the alarm goes off within so many milliseconds.
    fn rings(gathering: &Gathering, milliseconds: i64) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(gathering.alarm(), PollFlags::IN)];
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
        gathering.begin(None, now());
        assert!(rings(&gathering, 900));
        gathering.silence();
        assert!(!rings(&gathering, 2));
        gathering.begin(None, now());
        assert!(rings(&gathering, 900));
    }

    #[test]
    fn the_alarm_is_put_off_and_set_seldom_while_the_program_posts() {
        let gathering = Gathering::new().unwrap();
        let start = now() + Duration::from_secs(3600);
        gathering.begin(None, start);
        let first = lock(&gathering.list).alarm_at;
        assert_eq!(first, start + 2 * PATIENCE);
        gathering.begin(None, start + PATIENCE);
        assert_eq!(lock(&gathering.list).alarm_at, first);
        let later = start + PATIENCE + Duration::from_nanos(1);
        gathering.begin(None, later);
        assert_eq!(lock(&gathering.list).alarm_at, later + 2 * PATIENCE);
    }
}
