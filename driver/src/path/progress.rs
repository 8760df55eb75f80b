//! The progress thread: receives, sends and runs timers while the program does not.
//!
//! A program that polls, or waits in a blocking call, receives its packets itself, and this thread
//! must not slow it down. A program that computes, or that is only the target of one-sided
//! operations, makes no calls, and this thread receives for it. So the thread sleeps in one of
//! modes:
//!
//! - [`Mode::Receiving`]: until a packet arrives, since no other thread receives. Where packets
//!   follow each other closely it busy-polls for a bounded time before it sleeps.
//! - [`Mode::PollersReceive`]: until the program has not polled for 1 to 8 ms. Then it checks
//!   whether packets wait. Neither packets nor timers of queue pairs wake it.
//! - [`Mode::WaitersReceive`]: for 1 ms, or until a timer of a queue pair expires: the program
//!   waits in blocking calls.
//! - [`Mode::Parked`]: until a timer expires or a thread wakes it; packets do not. A thread of the
//!   program sleeps in a blocking call and watches the sockets itself. That thread wakes this one
//!   when its call ends, since its next call may be far off.
//!
//! In each of them the thread wakes for the flush timeout of deferred sends, for messages of other
//! processes about the port, and for room in a socket. [`crate::scheduling::adaptive`] chooses the
//! mode.

use super::engine::{Engine, Network};
use crate::memory::access;
use crate::scheduling::adaptive::{AdaptivePolling, CpuTimes, Interval};
use crate::scheduling::handoff::Mode;
use crate::scheduling::limits::{CHECK_INTERVAL, CONTENTION_SLEEP};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use urxe_net::{now, thread};
use urxe_proto::time::Time;

/// The pause after a panic or an error of poll(2), which may recur.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// How a sleep ended.
#[derive(Default)]
struct Woken {
    /// The thread gave the processor up; it did not just poll the descriptors.
    has_slept: bool,
    /// A descriptor that wakes the thread in every mode is readable.
    control: bool,
    /// The flush timeout of deferred sends has expired.
    flush: bool,
}

/// Starts the thread. It works once the network part is stored, which the caller does at once.
pub(super) fn start(engine: &'static Engine) -> io::Result<()> {
    let run = move || {
        access::mark_own_thread();
        let network = loop {
            if let Some(network) = engine.network.get() {
                break network;
            }
            std::thread::yield_now();
        };
        let policy = AdaptivePolling::default();
        ProgressThread {
            engine,
            network,
            policy,
        }
        .run();
    };
    thread::spawn("urxe-progress", run)
}

struct ProgressThread {
    engine: &'static Engine,
    network: &'static Network,
    policy: AdaptivePolling,
}

impl ProgressThread {
    fn run(mut self) {
        while !self.engine.loss.is_lost() {
            let round = AssertUnwindSafe(|| self.round());
            if catch_unwind(round).is_err() {
                self.policy = AdaptivePolling::default();
                self.engine.waker.handoff().wake_up();
                self.engine.panicked();
                std::thread::sleep(ERROR_PAUSE);
            }
        }
    }

    /// Sleeps once, then does the work that is pending.
    fn round(&mut self) {
        let (engine, polling) = (self.engine, &self.engine.polling);
        if engine.take_panicked() {
            engine.fail_all();
        }
        let mode = self.policy.choose(polling, engine.waker.handoff(), now());
        if !engine.waker.handoff().may_delay_acks(false) {
            engine.send_delayed_acks();
        }
        let interval = self.policy.begin_sleep(polling, mode, now(), cpu_times);
        let Some(woken) = self.sleep(mode, &interval) else {
            return engine.loss.report();
        };
        let Woken {
            has_slept,
            control,
            flush,
        } = woken;
        if interval.program_is_outside_calls(polling) && self.network.watch.has_packets() {
            let spent = || time_of(ClockId::ProcessCPUTime);
            let is_armed = engine.waker.handoff().is_armed();
            self.policy
                .found_packets(polling, &interval, is_armed, now(), spent);
        }
        if has_slept {
            engine.counters.wakeups.add(1);
            if mode == Mode::Receiving {
                self.policy.woke(now());
            }
        }
        if control {
            engine.waker.clear();
            engine.serve_writable();
        }
        if flush {
            engine.send_late();
        }
        if control || engine.next_deadline(self.network) <= now() {
            engine.serve(self.network);
        }
        if mode == Mode::Receiving {
            self.watch();
        } else {
            engine.send_delayed_acks();
            engine.receive_beside_polls(self.network);
            let now = now();
            engine.run_timers(now);
            engine.run_pending(now);
        }
    }

    /// Sleeps once. Returns `None` when the program has closed the descriptors.
    fn sleep(&self, mode: Mode, interval: &Interval) -> Option<Woken> {
        let (engine, network) = (self.engine, self.network);
        let next = || match mode {
            Mode::PollersReceive => engine.next_service(network),
            _ => engine.next_deadline(network),
        };
        let mut deadline = next();
        // With several lists of delayed ACKs, a poll sends those of its own list only, and the
        // thread's checks send the others.
        let is_watched = mode == Mode::PollersReceive && network.deferred.only().is_some();
        if is_watched {
            network.watchdog.start(now(), interval.limit);
        } else if matches!(mode, Mode::PollersReceive | Mode::WaitersReceive) {
            deadline = deadline.min(now() + interval.limit);
        }
        // While packets follow closely, or work is pending, the thread polls without sleeping.
        let is_urgent = || interval.busy_polls || engine.has_pending();
        let next = || if is_urgent() { Time(0) } else { next() };
        let handoff = engine.waker.handoff();
        let timeout = timeout_until(handoff.fall_asleep(deadline, next));
        let has_slept = timeout.is_none_or(|time| (time.tv_sec, time.tv_nsec) != (0, 0));
        let (control, sockets) = (network.watch.control(), network.ports.packets());
        let also = match mode {
            Mode::Receiving => Some(sockets),
            _ => is_watched.then(|| network.watchdog.timer().as_fd()),
        };
        let mut fds = [
            PollFd::new(&control, PollFlags::IN),
            PollFd::new(&network.deferred, PollFlags::IN),
            PollFd::from_borrowed_fd(also.unwrap_or(control), PollFlags::IN),
        ];
        let watched = if also.is_some() { 3 } else { 2 };
        let polled = poll(&mut fds[..watched], timeout.as_ref());
        handoff.wake_up();
        network.watchdog.stop();
        match polled {
            Ok(_) => {}
            Err(Errno::INTR) => return Some(Woken::default()),
            // EINVAL if the program has lowered RLIMIT_NOFILE below the number of descriptors.
            Err(_) => {
                std::thread::sleep(ERROR_PAUSE);
                return Some(Woken::default());
            }
        }
        let is_closed = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::NVAL);
        if fds[..watched].iter().any(is_closed) {
            return None;
        }
        let control = !fds[0].revents().is_empty();
        // The number may belong to a file of the program by now, which the thread must not read.
        let is_ours = || (engine.waker.open()).is_ok_and(|wake| network.watch.is_ours(wake));
        if control && !is_ours() {
            return None;
        }
        Some(Woken {
            has_slept,
            control,
            flush: !fds[1].revents().is_empty(),
        })
    }

    /// Receives the packets that have arrived and those that follow closely, for at most
    /// [`CHECK_INTERVAL`].
    fn watch(&mut self) {
        let (engine, polling, policy) = (self.engine, &self.engine.polling, &mut self.policy);
        let (start, polls) = (now(), polling.polls());
        let mut time = start;
        let mut found = false;
        if policy.is_contended(time) && polling.is_in_call() {
            // A thread in a poll receives by itself. If this thread held the receiver, that poll
            // would find nothing, and the program would go on to poll memory. A thread in a post
            // does not receive, so the sleep is not repeated.
            std::thread::sleep(CONTENTION_SLEEP);
            time = now();
        }
        while time.since(start) < CHECK_INTERVAL {
            let before = time;
            let worked = engine.drive();
            time = now();
            found |= worked;
            if worked {
                let bytes = engine.net_counters().map_or(0, |net| net.bytes_in.get());
                policy.received(before, time, bytes, polling.polls() == polls);
                continue;
            }
            policy.received_nothing(time.since(before));
            let busy_polls = policy.busy_polls(now());
            // Another thread may need this processor: one of the peer, or one of the program that
            // receives in its call when this thread received nothing.
            let yields = !found && polling.is_in_call();
            if yields && policy.is_contended(time) {
                std::thread::sleep(CONTENTION_SLEEP);
            } else if busy_polls && !yields && !policy.yields(time) {
                std::hint::spin_loop();
            } else if busy_polls || yields {
                let before = now();
                rustix::thread::sched_yield();
                time = now();
                policy.yielded(time, time.since(before));
            }
            if !busy_polls {
                break;
            }
        }
    }
}

/// Returns the time until `deadline`; `None` if there is none.
fn timeout_until(deadline: Time) -> Option<Timespec> {
    if deadline == Time::NEVER {
        return None;
    }
    let left = deadline.since(now());
    Some(Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

fn cpu_times() -> CpuTimes {
    CpuTimes {
        thread: time_of(ClockId::ThreadCPUTime),
        process: time_of(ClockId::ProcessCPUTime),
    }
}

/// Returns the time of a clock of the process or of this thread.
fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
