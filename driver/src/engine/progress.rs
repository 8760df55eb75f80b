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
use super::{Engine, get};
use crate::net;
use crate::thread;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use urxe_proto::time::Time;

/// What ended a sleep, beside packets and the clock.
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
    pub(super) fn start(
        forwarded: BorrowedFd<'_>,
        presence: BorrowedFd<'_>,
    ) -> io::Result<Arc<Progress>> {
        let progress = Arc::new(Progress::new(forwarded, presence)?);
        let shared = Arc::clone(&progress);
        thread::spawn("urxe-progress", move || shared.run())?;
        Ok(progress)
    }

    /// What the thread waits for. `forwarded` is readable when another process passed a packet on;
    /// `presence` has an edge when one wants to see our end.
    pub(super) fn new(forwarded: BorrowedFd<'_>, presence: BorrowedFd<'_>) -> io::Result<Progress> {
        let progress = Progress {
            control: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        add(&progress.control, progress.wake.as_fd())?;
        add(&progress.control, forwarded)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &progress.control,
            presence,
            epoll::EventData::new_u64(0),
            edge,
        )?;
        Ok(progress)
    }

    /// Watches the sockets of an address too.
    pub(super) fn watch(&self, packets: BorrowedFd<'_>, service: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_packets(packets)?;
        add(&self.control, service)
    }

    /// Watches one more descriptor that has to do with other processes.
    pub(super) fn watch_control(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.control, fd)
    }

    /// Watches one more socket that packets arrive on.
    pub(super) fn watch_packets(&self, packets: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.sockets, packets)
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        // It could fail only if 2^64 calls had not been seen yet.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        let engine = get();
        // The engine has us before it has its network; whoever opens it is about to finish.
        let network = loop {
            if let Some(network) = engine.network.get() {
                break network;
            }
            std::thread::yield_now();
        };
        let mut seen = Seen::default();
        loop {
            let mode = seen.choose(engine);
            if mode != Mode::YieldingToPolls {
                engine.send_acks();
            }
            let moment = seen.moment(engine, mode);
            let Woken { control, alarm } = self.sleep(engine, network, mode, &moment);
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
            if control || engine.next_deadline(network) <= net::now() {
                engine.serve(network);
            }
            if mode == Mode::Watching {
                seen.watch(engine);
            } else {
                engine.send_acks();
                let now = net::now();
                engine.run_timers(now);
                engine.run_leftovers(now);
            }
        }
    }

    /// Whether packets have come that nobody has received.
    fn packets_wait(&self) -> bool {
        let mut fds = [PollFd::new(&self.sockets, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Sleeps.
    fn sleep(
        &self,
        engine: &Engine,
        network: &super::Network,
        mode: Mode,
        moment: &Moment,
    ) -> Woken {
        let next = || match mode {
            Mode::YieldingToPolls => engine.next_service(network),
            _ => engine.next_deadline(network),
        };
        let mut deadline = next();
        if matches!(mode, Mode::YieldingToPolls | Mode::YieldingToWaiters) {
            deadline = deadline.min(net::now() + moment.patience);
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
        let woke = |fd: &PollFd<'_>| polled.is_ok() && !fd.revents().is_empty();
        Woken {
            control: woke(&fds[0]),
            alarm: woke(&fds[1]),
        }
    }
}

/// Waits until `fd` is readable.
pub(super) fn wait(fd: BorrowedFd<'_>) -> io::Result<()> {
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?;
    Ok(())
}

/// Waits until `fd` is readable, receiving packets meanwhile.
pub(super) fn wait_driving(engine: &Engine, fd: BorrowedFd<'_>) -> io::Result<()> {
    let Some(network) = engine.network.get() else {
        return wait(fd);
    };
    let progress = &network.progress;
    engine.handover.enter();
    let result = loop {
        // After each batch comes a look at `fd`: packets of others may never stop coming.
        let worked = engine.drive();
        let timeout = worked.then(Timespec::default);
        let mut fds = [
            PollFd::from_borrowed_fd(fd, PollFlags::IN),
            PollFd::new(&progress.sockets, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Err(error) => break Err(error.into()),
            Ok(_) if !fds[0].revents().is_empty() => break Ok(()),
            Ok(_) => {}
        }
    };
    if engine.handover.leave() {
        progress.wake();
    }
    result
}

/// How long to sleep; `None` for ever.
fn timeout_until(deadline: Time) -> Option<Timespec> {
    if deadline == Time::NEVER {
        return None;
    }
    let left = deadline.since(net::now());
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

/// What became of a wait, where one that a signal interrupted and that goes on counts as over.
pub(super) fn unless_it_goes_on(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if goes_on_after(&error) => Ok(()),
        result => result,
    }
}

/// Whether a wait that a signal interrupted goes on, as a read would by `SA_RESTART`. A poll never
/// does; which signal it was is unknown, so it goes on unless the program handles some signal
/// without that flag.
fn goes_on_after(error: &io::Error) -> bool {
    if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) {
        return false;
    }
    (1..=libc::SIGRTMAX()).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a null action only asks; what is asked for is written on success.
        let action = unsafe {
            if libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) != 0 {
                return true;
            }
            action.assume_init()
        };
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !handled || action.sa_flags & libc::SA_RESTART != 0
    })
}
