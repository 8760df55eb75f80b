//! The progress thread: does the work of the network while the program does not.
//!
//! A program that polls, or waits in one of our calls, receives its packets itself, and must not feel
//! this thread; one that computes, or that is only the target of one-sided operations, must not
//! notice that it would have to receive. So the thread has three ways of sleeping:
//!
//! - *watching*: until a packet comes. Nobody else is at it.
//! - *yielding*: for a millisecond, to see whether the program still polls. Packets do not wake it.
//! - *parked*: until told. A thread of the program sleeps in one of our calls and watches itself; it
//!   wakes this one when it leaves, since nobody knows for how long.
//!
//! In all three it wakes for timers, for sends that the program left lying (`gathering`), and for what processes
//! tell each other about the port.

use super::handover::Mode;
use super::{Engine, get};
use crate::net;
use crate::thread;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use urxe_proto::time::Time;

/// How long the program may be silent before its packets are looked after.
const PATIENCE: Duration = Duration::from_millis(1);

/// The same where a look takes long.
const LONGEST_PATIENCE: Duration = Duration::from_millis(8);

/// How many times longer than a look the time between two is at least.
const LOOK_SELDOM: u32 = 20;

/// How many polls within [`PATIENCE`] say that the program polls all the time. One that waits for
/// events polls once or twice for each, and its completion queue is armed while it waits.
const BUSY_POLLS: u64 = 8;

/// How long packets are watched for after a program was found to wait for one without receiving, as
/// one does that spins on memory until its peer has written there. It may well poll, for completions
/// of sends that are there at once. For each such time there is one
/// packet that had to wait for [`PATIENCE`].
const WATCHFUL: Duration = Duration::from_millis(100);

/// How long to look for packets before sleeping, where the last one came within that time: to be woken takes a
/// large part of it. So a thread that sleeps a lot never does.
const SPIN: Duration = Duration::from_micros(50);

/// What ended a sleep, beside packets and the clock.
struct Woken {
    /// `control` has something.
    control: bool,
    /// Sends were left lying.
    alarm: bool,
}

/// What the thread saw of the program so far.
#[derive(Default)]
struct Seen {
    polls: u64,
    /// The time that the program spent receiving.
    spent: Duration,
    /// When it looked at both.
    polls_at: Time,
    /// How often the program's polls received what it would have spun for.
    paid: u64,
    returns: u64,
    /// Until when not to rely on the program's polling.
    watchful_until: Time,
    /// When packets were there last, in watching.
    received_at: Time,
    /// The last pause between packets was short.
    spins: bool,
    /// How long a look takes, about.
    cost: Duration,
    /// The time that the thread had spent at the last, if that was just before.
    own_time: Option<Duration>,
}

impl Seen {
    /// How long to let the program poll before the next look: no more than a twentieth of a processor's time goes
    /// for looking.
    fn patience(&mut self) -> Duration {
        let own_time = time_of(ClockId::ThreadCPUTime);
        if let Some(before) = self.own_time.replace(own_time) {
            let took = own_time.saturating_sub(before).min(LONGEST_PATIENCE);
            self.cost = (self.cost * 7 + took) / 8;
        }
        (self.cost * LOOK_SELDOM).clamp(PATIENCE, LONGEST_PATIENCE)
    }

    /// Whether packets were there a moment ago, and follow each other closely.
    fn spins_still(&self) -> bool {
        self.spins && net::now().since(self.received_at) < SPIN
    }

    /// Receives what is there, and what follows closely; but others have their turn after a while.
    fn watch(&mut self, engine: &Engine) {
        let (start, polls) = (net::now(), engine.polling.polls());
        let mut now = start;
        while now.since(start) < PATIENCE {
            let before = now;
            let worked = engine.drive();
            now = net::now();
            if worked {
                // A program that polls, however seldom, looks for itself.
                let alone = engine.polling.polls() == polls;
                self.spins = alone && before.since(self.received_at) < SPIN;
                self.received_at = now;
            } else if self.spins_still() {
                rustix::thread::sched_yield();
            } else {
                break;
            }
        }
    }

    /// Whether the program polls all the time.
    fn look_at_polls(&mut self, engine: &Engine, now: Time) -> bool {
        let (polls, spent) = (engine.polling.polls(), engine.polling.spent(now));
        let polled = polls.wrapping_sub(self.polls);
        let elapsed = now.since(self.polls_at);
        // Where each poll takes long there are few of them.
        let for_long = spent.saturating_sub(self.spent) >= elapsed / 2;
        let is_over = elapsed >= PATIENCE;
        if polled >= BUSY_POLLS || is_over {
            (self.polls, self.spent, self.polls_at) = (polls, spent, now);
        }
        let paid = engine.polling.paid();
        if std::mem::replace(&mut self.paid, paid) != paid {
            self.watchful_until = now;
        }
        polled >= BUSY_POLLS || (is_over && for_long)
    }
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
    /// Starts the thread. `forwarded` is readable when another process passed a packet on; `presence` has
    /// an edge when one wants to see our end.
    pub(super) fn start(
        forwarded: BorrowedFd<'_>,
        presence: BorrowedFd<'_>,
    ) -> io::Result<Arc<Progress>> {
        let progress = Arc::new(Progress {
            control: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        add(&progress.control, progress.wake.as_fd())?;
        add(&progress.control, forwarded)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &progress.control,
            presence,
            epoll::EventData::new_u64(0),
            edge,
        )?;
        let shared = Arc::clone(&progress);
        thread::spawn("urxe-progress", move || shared.run())?;
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
            let mode = self.choose(engine, &mut seen);
            if mode != Mode::YieldingToPolls {
                engine.send_acks();
            }
            let receives = engine.polling.receives();
            let spent = || time_of(ClockId::ProcessCPUTime);
            let (patience, slept_at, spent_before) = match mode {
                Mode::YieldingToPolls => (seen.patience(), net::now(), spent()),
                _ => {
                    seen.own_time = None;
                    (PATIENCE, Time::default(), Duration::ZERO)
                }
            };
            let spins = mode == Mode::Watching && seen.spins_still();
            let Woken { control, alarm } = self.sleep(engine, network, mode, patience, spins);
            // A program that did not get the processor could not poll.
            let computes = || {
                let spent = spent().saturating_sub(spent_before);
                spent >= net::now().since(slept_at) / 2
            };
            if mode == Mode::YieldingToPolls
                && engine.polling.receives() == receives
                && !engine.polling.is_called()
                && self.packets_wait()
                && computes()
            {
                seen.watchful_until = net::now() + WATCHFUL;
                engine.polling.program_spins();
            }
            engine.counters.wakeups.add(1);
            if control {
                let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
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
                engine.run_timers();
                engine.run_leftovers();
            }
        }
    }

    /// How to sleep, by what happened since the last time.
    fn choose(&self, engine: &Engine, seen: &mut Seen) -> Mode {
        let now = net::now();
        let polls = seen.look_at_polls(engine, now) && now >= seen.watchful_until;
        engine.handover.choose(polls, &mut seen.returns)
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
        patience: Duration,
        spins: bool,
    ) -> Woken {
        let next = || match mode {
            Mode::YieldingToPolls => engine.next_service(network),
            _ => engine.next_deadline(network),
        };
        let mut deadline = next();
        if matches!(mode, Mode::YieldingToPolls | Mode::YieldingToWaiters) {
            deadline = deadline.min(net::now() + patience);
        }
        // Packets that follow closely are looked for without sleeping.
        let until =
            engine
                .handover
                .fall_asleep(deadline, || match spins || engine.has_leftovers() {
                    true => Time(0),
                    false => next(),
                });
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

/// What a clock of the process's, or of this thread's, shows.
fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
