//! How a thread waits for an event: in steps between which it sleeps.
//!
//! The caller of a step does the sleeping. So the C ABI can sleep at a cancellation point, in a frame that has
//! nothing to drop (pthread_cancel(3) unwinds the stack by force), while everything else runs with
//! cancellation disabled.

use crate::engine::Waiter;
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The wait of one thread, from its first step to the event.
#[derive(Debug)]
pub struct Waiting {
    /// While the thread receives for the process.
    pub(crate) waiter: Option<Waiter<'static>>,
    /// An event may have come since the queue was last found empty.
    pub(crate) may_have_event: bool,
    /// The network's work was done once, for a descriptor that does not block.
    pub(crate) has_driven: bool,
    sleep: Sleep,
}

/// What a thread sleeps on: the arguments of poll(2).
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    /// The first is the queue's own.
    fds: [libc::pollfd; 2],
    count: usize,
    timeout: libc::c_int,
}

impl Sleep {
    /// Until `fd` is readable.
    fn on(fd: BorrowedFd<'_>) -> Self {
        Sleep {
            fds: [reads(fd.as_raw_fd()), reads(-1)],
            count: 1,
            timeout: -1,
        }
    }

    /// Until `time` has passed.
    pub fn for_milliseconds(time: libc::c_int) -> Self {
        Sleep {
            fds: [reads(-1); 2],
            count: 0,
            timeout: time,
        }
    }

    /// What to poll, and for how many milliseconds at most; -1 is for ever.
    pub fn arguments(&mut self) -> (&mut [libc::pollfd], libc::c_int) {
        (&mut self.fds[..self.count], self.timeout)
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
    /// The wait of a thread that has not looked for an event yet.
    pub fn new() -> Self {
        Waiting {
            waiter: None,
            may_have_event: true,
            has_driven: false,
            sleep: Sleep::for_milliseconds(0),
        }
    }

    /// What the thread sleeps on before its next step.
    pub fn sleep(&self) -> Sleep {
        self.sleep
    }

    /// The next sleep takes this long, whatever comes.
    pub fn sleep_for(&mut self, milliseconds: libc::c_int) {
        self.sleep = Sleep::for_milliseconds(milliseconds);
    }

    /// The next sleep is until `fd` is readable, or, where the thread receives, until a packet comes.
    /// `has_worked` says that there may be more packets: then it does not sleep.
    pub(crate) fn sleep_on(&mut self, fd: BorrowedFd<'_>, has_worked: bool) {
        self.sleep = Sleep::on(fd);
        if let Some(waiter) = &self.waiter {
            self.sleep.fds[1] = reads(waiter.sockets().as_raw_fd());
            self.sleep.count = 2;
        }
        if has_worked {
            self.sleep.timeout = 0;
        }
    }

    /// Notes how the sleep ended: what poll(2) returned, and wrote into `slept`.
    ///
    /// # Errors
    /// `Interrupted` when a signal ended a sleep that it would also end if it were a read(2); other errors of
    /// poll(2).
    pub fn woke(&mut self, polled: io::Result<()>, slept: &Sleep) -> io::Result<()> {
        match polled {
            Ok(()) => {
                self.may_have_event = slept.fds[0].revents != 0;
                if slept.fds[1].revents & libc::POLLNVAL != 0
                    && let Some(waiter) = self.waiter.take()
                {
                    waiter.lost_sockets();
                }
            }
            // The queue is looked at again: the program may have made its descriptor non-blocking.
            Err(error) if goes_on_after(&error) => self.may_have_event = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sleeps, in a thread that is not cancelled.
    ///
    /// # Errors
    /// See [`Waiting::woke`].
    pub fn sleep_here(&mut self) -> io::Result<()> {
        let mut sleep = self.sleep;
        let (fds, timeout) = sleep.arguments();
        // SAFETY: the pointer and the length are those of a slice, which lives through the call.
        let polled = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        let polled = match polled {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
        self.woke(polled, &sleep)
    }
}

/// Whether a wait that a signal interrupted goes on, as read(2) would by `SA_RESTART`. poll(2) never
/// does; which signal it was is unknown, so the wait goes on unless the program handles some signal
/// without that flag.
fn goes_on_after(error: &io::Error) -> bool {
    if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) {
        return false;
    }
    (1..=libc::SIGRTMAX()).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a null action only asks; sigaction initializes `action` where it succeeds.
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
