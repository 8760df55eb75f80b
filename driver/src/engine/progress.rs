//! The progress thread: does the work of the network while the program does not.
//!
//! A program that polls, or waits in one of our calls, receives its packets itself, and must not feel
//! this thread; one that computes, or that is only the target of one-sided operations, must not
//! notice that it would have to receive. So the thread has three ways of sleeping:
//!
//! - *watching*: until a packet comes. Nobody else is at it. Where packets follow each other closely it looks for more
//!   a while before it sleeps.
//! - *yielding*: for a millisecond, to see whether the program still polls. Packets do not wake it, and timers only
//!   where the program waits.
//! - *parked*: until told. A thread of the program sleeps in one of our calls and watches itself; it
//!   wakes this one when it leaves, since nobody knows for how long.
//!
//! In all three it wakes for sends that the program left lying (`gathering`), and for what processes
//! tell each other about the port. `seen` is how it chooses.

use super::handover::Mode;
use super::seen::{Moment, Seen};
use super::{Engine, Network, get};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use urxe_net::thread;
use urxe_proto::time::Time;

/// How long the thread rests after a panic, which may repeat itself.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// What ended a sleep, beside packets and the clock.
#[derive(Default)]
struct Woken {
    /// `control` has something.
    control: bool,
    /// Sends were left lying.
    alarm: bool,
}

/// What the thread and the program's threads tell each other.
#[derive(Debug)]
pub(super) struct Progress {
    /// Readable when the thread has something to do whatever its mode.
    control: OwnedFd,
    /// Readable when a packet has come.
    sockets: OwnedFd,
    wake: OwnedFd,
}

impl Progress {
    /// Starts the thread, see [`Progress::new`].
    pub(super) fn start(forwarded: BorrowedFd<'_>) -> io::Result<Arc<Progress>> {
        let progress = Arc::new(Progress::new(forwarded)?);
        // By the time that the thread runs there may be another engine.
        let (shared, engine) = (Arc::clone(&progress), get());
        thread::spawn("urxe-progress", move || shared.run(engine))?;
        Ok(progress)
    }

    /// What the thread waits for. `forwarded` is readable when another process has connected, or
    /// passed a packet on.
    pub(super) fn new(forwarded: BorrowedFd<'_>) -> io::Result<Progress> {
        let progress = Progress {
            control: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        add(&progress.control, progress.wake.as_fd())?;
        add(&progress.control, forwarded)?;
        Ok(progress)
    }

    /// Watches the sockets of an address too.
    pub(super) fn watch(&self, packets: BorrowedFd<'_>, service: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_packets(packets)?;
        add(&self.control, service)
    }

    /// Watches one more descriptor that makes [`Engine::serve`] necessary when it is readable.
    pub(super) fn watch_control(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.control, fd)
    }

    /// Watches one more connection to another process, for its end only.
    pub(super) fn watch_end(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let none = epoll::EventFlags::empty();
        epoll::add(&self.control, fd, epoll::EventData::new_u64(0), none)?;
        Ok(())
    }

    /// Watches one more socket that packets arrive on.
    pub(super) fn watch_packets(&self, packets: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.sockets, packets)
    }

    /// Readable when a packet has come.
    pub(super) fn sockets(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// Wakes the thread.
    ///
    /// # Errors
    /// When the program has closed the descriptor.
    pub(super) fn wake(&self) -> io::Result<()> {
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    fn run(&self, engine: &'static Engine) {
        // The engine has us before it has its network; whoever opens it is about to finish.
        let network = loop {
            if let Some(network) = engine.network.get() {
                break network;
            }
            std::thread::yield_now();
        };
        let mut seen = Seen::default();
        while !engine.has_lost() {
            let turn = AssertUnwindSafe(|| self.turn(engine, network, &mut seen));
            if catch_unwind(turn).is_err() {
                seen = Seen::default();
                engine.handover.wake_up();
                engine.panicked();
                std::thread::sleep(PANIC_PAUSE);
            }
        }
    }

    /// Sleeps once, and does what there is to do then.
    fn turn(&self, engine: &Engine, network: &Network, seen: &mut Seen) {
        if engine.take_panicked() {
            engine.fail_all();
        }
        let mode = seen.choose(engine);
        if mode != Mode::YieldingToPolls {
            engine.send_acks();
        }
        let moment = seen.moment(engine, mode);
        let Some(Woken { control, alarm }) = self.sleep(engine, network, mode, &moment) else {
            return engine.lost_descriptors();
        };
        if moment.program_is_elsewhere(engine) && self.packets_wait() {
            seen.found_waiting(engine, &moment);
        }
        if !moment.spins {
            engine.counters.wakeups.add(1);
        }
        if control {
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
            engine.use_rooms();
        }
        if alarm {
            engine.send_left_lying();
        }
        if control || engine.next_deadline(network) <= urxe_net::now() {
            engine.serve(network);
        }
        if mode == Mode::Watching {
            seen.watch(engine);
        } else {
            engine.send_acks();
            let now = urxe_net::now();
            engine.run_timers(now);
            engine.run_leftovers(now);
        }
    }

    /// Whether the numbers of `control` and `wake` are still theirs: only then does the one watch the other.
    fn is_control_ours(&self) -> bool {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::modify(&self.control, &self.wake, data, flags).is_ok()
    }

    /// Whether packets have come that nobody has received.
    fn packets_wait(&self) -> bool {
        let mut fds = [PollFd::new(&self.sockets, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Sleeps. `None` when the program has closed the descriptors.
    fn sleep(
        &self,
        engine: &Engine,
        network: &Network,
        mode: Mode,
        moment: &Moment,
    ) -> Option<Woken> {
        let next = || match mode {
            Mode::YieldingToPolls => engine.next_service(network),
            _ => engine.next_deadline(network),
        };
        let mut deadline = next();
        if matches!(mode, Mode::YieldingToPolls | Mode::YieldingToWaiters) {
            deadline = deadline.min(urxe_net::now() + moment.patience);
        }
        // Packets that follow closely are looked for without sleeping.
        let is_urgent = || moment.spins || engine.has_leftovers();
        let next = || if is_urgent() { Time(0) } else { next() };
        let until = engine.handover.fall_asleep(deadline, next);
        let timeout = timeout_until(until);
        let mut fds = [
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(network.gathering.alarm(), PollFlags::IN),
            PollFd::new(&self.sockets, PollFlags::IN),
        ];
        let watched = if mode == Mode::Watching { 3 } else { 2 };
        let polled = poll(&mut fds[..watched], timeout.as_ref());
        engine.handover.wake_up();
        if polled.is_err() {
            return Some(Woken::default());
        }
        let is_closed = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::NVAL);
        if fds[..watched].iter().any(is_closed) {
            return None;
        }
        let control = !fds[0].revents().is_empty();
        // The number may be that of another file by now, whose contents are not the thread's to read.
        if control && !self.is_control_ours() {
            return None;
        }
        Some(Woken {
            control,
            alarm: !fds[1].revents().is_empty(),
        })
    }
}

/// How long to sleep; `None` for ever.
fn timeout_until(deadline: Time) -> Option<Timespec> {
    if deadline == Time::NEVER {
        return None;
    }
    let left = deadline.since(urxe_net::now());
    Some(Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    epoll::add(
        epoll,
        fd,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )?;
    Ok(())
}
