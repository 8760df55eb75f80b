//! The progress thread: receives, sends and runs timers while the program does not.
//!
//! A program that polls, or waits in a blocking call, receives its packets itself, and this thread
//! must not slow it down. A program that computes, or that is only the target of one-sided
//! operations, makes no calls, and this thread receives for it. So the thread sleeps in one of
//! these ways:
//!
//! - *watching*: until a packet arrives, since no other thread receives. Where packets follow each
//!   other closely it busy-polls for a bounded time before it sleeps.
//! - *yielding*: for 1 to 8 ms, then it checks whether the program still polls. Packets do not wake
//!   it, and timers of queue pairs only where the program waits in blocking calls.
//! - *parked*: until it is woken. A thread of the program sleeps in a blocking call and watches the
//!   sockets itself. That thread wakes this one when its call ends, since its next call may be far
//!   off.
//!
//! In each of them the thread wakes for the flush timeout of deferred sends (`gathering`), for
//! messages of other processes about the port, and for room in a socket. `seen` chooses the way.

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

/// The pause after a panic, which may recur.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// The events that ended a sleep, other than packets and the deadline.
#[derive(Default)]
struct Woken {
    /// `control` is readable.
    control: bool,
    /// The flush timeout of deferred sends has expired.
    alarm: bool,
}

/// The descriptors that the thread sleeps on.
#[derive(Debug)]
pub(super) struct Progress {
    /// Readable when the thread has work to do in every mode.
    control: OwnedFd,
    /// Readable when a packet has arrived.
    sockets: OwnedFd,
    wake: OwnedFd,
}

impl Progress {
    /// Starts the thread, see [`Progress::new`].
    pub(super) fn start(forwarded: BorrowedFd<'_>) -> io::Result<Arc<Progress>> {
        let progress = Arc::new(Progress::new(forwarded)?);
        // `get` is called here: when the thread runs, it may already return another engine.
        let (shared, engine) = (Arc::clone(&progress), get());
        thread::spawn("urxe-progress", move || shared.run(engine))?;
        Ok(progress)
    }

    /// Creates the descriptors of the thread. `forwarded` is readable when another process has
    /// connected, or has forwarded a packet.
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

    /// Adds the sockets of an address: `packets` for packets, `service` for port sharing.
    pub(super) fn watch(&self, packets: BorrowedFd<'_>, service: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_packets(packets)?;
        add(&self.control, service)
    }

    /// Adds a descriptor that requires [`Engine::serve`] when it is readable.
    pub(super) fn watch_control(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.control, fd)
    }

    /// Adds a connection to another process, and watches it for its end only.
    pub(super) fn watch_end(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let none = epoll::EventFlags::empty();
        epoll::add(&self.control, fd, epoll::EventData::new_u64(0), none)?;
        Ok(())
    }

    /// Adds a socket on which packets arrive.
    pub(super) fn watch_packets(&self, packets: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.sockets, packets)
    }

    /// Returns a descriptor that is readable when a packet has arrived.
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
        // The thread starts before the network part is stored; the thread that opens it stores it
        // soon.
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

    /// Sleeps once, then does the work that is pending.
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

    /// Returns whether the numbers of `control` and `wake` still belong to the engine: only then
    /// does `control` watch `wake`.
    fn is_control_ours(&self) -> bool {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::modify(&self.control, &self.wake, data, flags).is_ok()
    }

    /// Returns whether packets have arrived that no thread has received.
    fn packets_wait(&self) -> bool {
        let mut fds = [PollFd::new(&self.sockets, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Sleeps once. Returns `None` when the program has closed the descriptors.
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
        // While packets follow closely, or work is pending, the thread polls without sleeping.
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
        // The number may belong to a file of the program by now, which the thread must not read.
        if control && !self.is_control_ours() {
            return None;
        }
        Some(Woken {
            control,
            alarm: !fds[1].revents().is_empty(),
        })
    }
}

/// Returns the time until `deadline`; `None` if there is none.
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
