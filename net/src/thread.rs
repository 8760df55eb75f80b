//! The library's own threads, and their signal masks. Signals sent to the process are handled by
//! the program's threads. A signal that an instruction raises goes to the program's handler in any
//! thread.

use std::io;
use std::mem::MaybeUninit;

/// The synchronous signals, which an instruction of the thread raises. The kernel delivers such a
/// signal to the thread that raises it, and kills the process if that thread blocks it. A program
/// may handle them: write barriers and checkpointers protect pages and catch the SIGSEGV of the
/// first access, which may be a peer's access that a thread of the library executes.
const SYNCHRONOUS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Starts a detached thread that blocks all signals except the synchronous ones.
///
/// # Errors
/// When the system cannot start another thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let signals = BlockedSignals::new();
    let started = std::thread::Builder::new().name(name.into()).spawn(run);
    drop(signals);
    started.map(drop)
}

/// A guard: while it exists, the thread blocks all signals except the synchronous ones. Threads
/// that it starts inherit the mask.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        let mut blocked = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset initializes the whole of `blocked`, which sigdelset and
        // pthread_sigmask read. pthread_sigmask writes the whole of `before`. All pointers and
        // signal numbers are valid, so no call fails.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for signal in SYNCHRONOUS {
                libc::sigdelset(blocked.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
            BlockedSignals(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the mask that pthread_sigmask returned, so it is initialized. A null
        // pointer asks for no result.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut());
        }
    }
}

unsafe extern "C-unwind" {
    /// The function of the C library; the libc crate lacks it for Linux.
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Calls `call` with cancellation of the thread disabled. pthread_cancel(3) unwinds the stack by
/// force, which Rust does not permit through frames that drop values or catch panics.
#[inline]
pub fn without_cancellation<T>(call: impl FnOnce() -> T) -> T {
    let _disabled = CancellationDisabled::new();
    call()
}

/// A guard: while it exists, the thread is not cancelled. See [`without_cancellation`].
#[derive(Debug)]
pub struct CancellationDisabled {
    /// The state before.
    before: libc::c_int,
}

impl Default for CancellationDisabled {
    fn default() -> Self {
        Self::new()
    }
}

impl CancellationDisabled {
    /// Disables cancellation of the thread until the guard is dropped.
    #[inline]
    pub fn new() -> Self {
        /// `PTHREAD_CANCEL_DISABLE`.
        const DISABLE: libc::c_int = 1;
        let mut before = DISABLE;
        // SAFETY: the state is valid, and `before` is valid for writing the old one.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        CancellationDisabled { before }
    }
}

impl Drop for CancellationDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `before` is the state that was in force; a null pointer asks for no result. The
        // call unwinds only in a thread with asynchronous cancellation, which POSIX does not allow
        // to call functions that are not async-cancel-safe.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// The signals that the calling thread blocks.
    fn blocked() -> Vec<libc::c_int> {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: a null set changes nothing, and the current mask is written to `mask`.
        let mask = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
            mask.assume_init()
        };
        // SAFETY: `mask` is initialized, and the numbers are valid signal numbers.
        let is_blocked = |&signal: &libc::c_int| unsafe { libc::sigismember(&mask, signal) == 1 };
        (1..=libc::SIGRTMAX()).filter(is_blocked).collect()
    }

    #[test]
    fn thread_blocks_asynchronous_signals_only() {
        let (send, receive) = mpsc::channel();
        spawn("test", move || send.send(blocked()).unwrap()).unwrap();
        let of_thread = receive.recv().unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1] {
            assert!(of_thread.contains(&signal), "{signal} is not blocked");
        }
        for signal in SYNCHRONOUS {
            assert!(!of_thread.contains(&signal), "{signal} is blocked");
        }
    }

    #[test]
    fn caller_keeps_its_mask() {
        let before = blocked();
        spawn("test", || ()).unwrap();
        assert_eq!(blocked(), before);
    }
}
