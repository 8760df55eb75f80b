//! The wait of a thread for an event, in steps between which it sleeps.
//!
//! The caller of a step does the sleeping. So the C ABI can sleep at a cancellation point, in a
//! frame that has nothing to drop: pthread_cancel(3) unwinds the stack by force, which a frame with
//! destructors does not survive. Other code runs with cancellation disabled, or reaches no
//! cancellation point.

use crate::event_queue::{EventQueue, WaitStrategy};
use crate::path::{self, Waiter};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use urxe_net::thread;

/// The wait of one thread, from its first step to the event.
#[derive(Debug)]
pub struct Waiting {
    /// Present once the thread has begun to wait, and receives for the process or leaves that to
    /// another one.
    waiter: Option<Waiter<'static>>,
    /// Whether an event may have arrived since the queue was last found empty.
    may_have_event: bool,
    /// Whether the thread has driven the engine once, as it does for a descriptor that does not
    /// block.
    has_driven: bool,
    /// Whether the thread has slept and was woken.
    has_slept: bool,
    sleep: Sleep,
}

/// The arguments of poll(2) for a thread that sleeps.
#[derive(Debug)]
struct Sleep {
    /// The first one is the descriptor of the queue.
    fds: [libc::pollfd; 2],
    count: usize,
    timeout: libc::c_int,
}

impl Sleep {
    /// Sleeps until `fd` is readable.
    fn on(fd: BorrowedFd<'_>) -> Self {
        Sleep {
            fds: [reads(fd.as_raw_fd()), reads(-1)],
            count: 1,
            timeout: -1,
        }
    }

    /// Sleeps for `time` milliseconds.
    fn for_milliseconds(time: libc::c_int) -> Self {
        Sleep {
            fds: [reads(-1); 2],
            count: 0,
            timeout: time,
        }
    }
}

fn reads(fd: libc::c_int) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

impl Default for Waiting {
    fn default() -> Self {
        Self::new()
    }
}

impl Waiting {
    /// Creates the wait of a thread that has not checked for an event yet.
    pub fn new() -> Self {
        Waiting {
            waiter: None,
            may_have_event: true,
            has_driven: false,
            has_slept: false,
            sleep: Sleep::for_milliseconds(0),
        }
    }

    /// Returns the descriptors that the thread polls before its next step, and the timeout in
    /// milliseconds; -1 means none.
    #[inline]
    pub fn sleep(&mut self) -> (&mut [libc::pollfd], libc::c_int) {
        let Sleep {
            fds,
            count,
            timeout,
        } = &mut self.sleep;
        (&mut fds[..*count], *timeout)
    }

    /// Makes the next sleep take this long, whether or not an event arrives.
    pub fn sleep_for(&mut self, milliseconds: libc::c_int) {
        self.sleep = Sleep::for_milliseconds(milliseconds);
    }

    /// Makes the next sleep end when `fd` is readable or, if the thread receives, when a packet
    /// arrives. `has_worked` says that more packets may be pending: then the thread does not sleep.
    #[inline]
    fn sleep_on(&mut self, fd: BorrowedFd<'_>, has_worked: bool) {
        self.sleep = Sleep::on(fd);
        if let Some(waiter) = &self.waiter
            && waiter.receives()
        {
            self.sleep.fds[1] = reads(waiter.sockets().as_raw_fd());
            self.sleep.count = 2;
        }
        if has_worked {
            self.sleep.timeout = 0;
        }
    }

    /// Records how the sleep ended: the result of poll(2) on [`Waiting::sleep`].
    ///
    /// # Errors
    /// `Interrupted` when a signal ended a sleep that it would also end if it were a read(2); other
    /// errors of poll(2).
    #[inline]
    pub fn woke(&mut self, polled: io::Result<()>) -> io::Result<()> {
        self.has_slept = true;
        match polled {
            Ok(()) => {
                let [queue, sockets] = &self.sleep.fds;
                self.may_have_event = queue.revents != 0;
                if sockets.revents & libc::POLLNVAL != 0
                    && let Some(waiter) = self.waiter.take()
                {
                    waiter.lost_sockets();
                }
            }
            // The queue is checked again: the program may have made its descriptor non-blocking.
            Err(error) if restarts_after(&error) => self.may_have_event = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sleeps with poll(2), in a thread that is not cancelled.
    ///
    /// # Errors
    /// See [`Waiting::woke`].
    pub fn sleep_here(&mut self) -> io::Result<()> {
        let (fds, timeout) = self.sleep();
        // SAFETY: poll(2) needs `fds.len()` writable `pollfd`s: `fds` is a mutable slice of that
        // length, and lives through the call.
        let polled = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        let polled = match polled {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
        self.woke(polled)
    }
}

/// Sleeps until `fd` is readable, in a thread that is not cancelled. May return before that: the
/// caller checks its condition again.
///
/// # Errors
/// See [`Waiting::woke`].
pub fn sleep_on(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut waiting = Waiting::new();
    waiting.sleep = Sleep::on(fd);
    waiting.sleep_here()
}

impl<T> EventQueue<T> {
    /// Takes the oldest event. If there is none, waits for one unless the descriptor has
    /// `O_NONBLOCK`.
    ///
    /// # Errors
    /// `WouldBlock` when there is none and the descriptor has `O_NONBLOCK`; `Interrupted` when a
    /// signal arrived.
    pub fn next(&self) -> io::Result<T> {
        self.next_with(Some)
    }

    /// Takes the oldest event and passes it to `take` while the queue is locked, so a thread that
    /// removes events afterwards sees the effects of `take`. If `take` returns `None`, the event
    /// is discarded and the next one is awaited.
    ///
    /// # Errors
    /// See [`EventQueue::next`].
    pub fn next_with<R>(&self, mut take: impl FnMut(T) -> Option<R>) -> io::Result<R> {
        let mut waiting = Waiting::new();
        loop {
            if let Some(taken) = self.step(&mut waiting, &mut take)? {
                return Ok(taken);
            }
            waiting.sleep_here()?;
        }
    }

    /// Executes one step of [`EventQueue::next_with`]. Returns `None` when there is no event yet:
    /// the thread then sleeps as [`Waiting::sleep`] says, calls [`Waiting::woke`], and takes the
    /// next step.
    ///
    /// The thread may be cancelled in the first step: no cancellation point is reached.
    ///
    /// # Errors
    /// See [`EventQueue::next`].
    pub fn step<R>(
        &self,
        waiting: &mut Waiting,
        mut take: impl FnMut(T) -> Option<R>,
    ) -> io::Result<Option<R>> {
        if waiting.may_have_event {
            if let Some(taken) = self.take_with(&mut take) {
                return Ok(Some(taken));
            }
            if is_nonblocking(self.fd())? {
                if waiting.has_driven || self.wait_strategy() == WaitStrategy::Sleep {
                    return Err(Errno::AGAIN.into());
                }
                path::get().flush_deferred();
                thread::without_cancellation(|| path::get().drive());
                waiting.has_driven = true;
                return self.step(waiting, take);
            }
            path::get().flush_deferred();
            if self.wait_strategy() == WaitStrategy::Receive && waiting.waiter.is_none() {
                waiting.waiter = path::get().wait();
            }
        }
        let has_worked = match &mut waiting.waiter {
            Some(waiter)
                if (waiting.has_slept && waiter.receives()) || waiter.drives_before_sleep() =>
            {
                let announced = self.announce();
                let has_worked = match waiting.has_slept {
                    true => waiter.drive(),
                    false => thread::without_cancellation(|| waiter.drive_before_sleep()),
                };
                // After each batch the thread checks its own queue, since packets for other objects
                // may never stop.
                if let Some(taken) = announced.take(&mut take) {
                    return Ok(Some(taken));
                }
                waiter.send_delayed_acks();
                waiter.drove_for_others();
                has_worked
            }
            _ => false,
        };
        waiting.sleep_on(self.fd(), has_worked);
        Ok(None)
    }
}

/// Returns whether a descriptor has `O_NONBLOCK`.
fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // Not through the C library's function, which handles the arguments of other commands first.
    // SAFETY: `F_GETFL` has no further argument, and any descriptor may be passed.
    match unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_GETFL) } {
        -1 => Err(io::Error::last_os_error()),
        flags => Ok(flags & libc::c_long::from(libc::O_NONBLOCK) != 0),
    }
}

/// Returns whether a wait that a signal interrupted continues, as read(2) would by `SA_RESTART`.
///
/// poll(2) never does. The signal is not known here, so the wait continues unless the program
/// handles some signal without that flag.
fn restarts_after(error: &io::Error) -> bool {
    if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) {
        return false;
    }
    (1..=libc::SIGRTMAX()).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: sigaction(2) accepts a null new action, and then only writes the current one to
        // `action`, which is valid for writes. It has initialized `action` where it returns 0.
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
