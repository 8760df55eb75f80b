//! Threads of our own. All signals are the program's: such a thread gets none of them.

use std::io;
use std::mem::MaybeUninit;

/// Starts a thread that lives as long as the process.
///
/// # Errors
/// When the system has none to give.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let signals = BlockedSignals::new();
    let started = std::thread::Builder::new().name(name.into()).spawn(run);
    drop(signals);
    started.map(drop)
}

/// While this lives, the thread takes no signal, and a thread that it starts never does.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset writes the whole set, and pthread_sigmask reads one and writes one.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            BlockedSignals(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut());
        }
    }
}
