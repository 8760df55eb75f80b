//! Thread cancellation: pthread_cancel(3).
//!
//! The functions that wait for an event are cancellation points, as in rdma-core; the others are
//! not (`docs/THREADS.md`). glibc cancels a thread by a forced unwind of its stack. That unwind
//! must not cross a frame that catches panics or has a destructor to run. Every function therefore
//! runs with cancellation disabled where it may reach a cancellation point. The waiting functions
//! sleep in [`wait`]: a frame of plain data, where the caller's cancellation state applies. The C
//! library's functions are declared `C-unwind` here; with plain `C` the forced unwind would abort
//! the process.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;

use libc::{nfds_t, pollfd};
use urxe_driver::waiting::Waiting;

use super::entry;
use super::errno::{self, Errno};

/// `struct _pthread_cleanup_buffer` of the C library.
#[repr(C)]
struct CleanupBuffer {
    routine: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    cancel_type: c_int,
    previous: *mut CleanupBuffer,
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    /// The function that `pthread_cleanup_push` called in C programs without exceptions, from the
    /// Linux Standard Base. The current macro uses setjmp(3) in the caller's frame, which Rust does
    /// not have.
    fn _pthread_cleanup_push(
        buffer: *mut CleanupBuffer,
        routine: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
}

/// Wraps a function that waits for an event, and returns 0, or -1 and sets `errno`.
///
/// `begin` checks the arguments and returns the step function. A step returns true if the wait is
/// over. The thread may be cancelled on entry, and while it sleeps between two steps; the step
/// function is then dropped and no event is lost. `begin` is `Copy`, so this frame has nothing to
/// drop.
///
/// `begin` and the first step run with cancellation enabled: disabling it would be a large part of
/// their cost. They must reach no cancellation point, except within
/// [`thread::without_cancellation`](urxe_net::thread::without_cancellation).
pub(super) fn wait<F>(name: &'static str, begin: impl FnOnce() -> Result<F, Errno> + Copy) -> c_int
where
    F: FnMut(&mut Waiting) -> Result<bool, Errno>,
{
    // SAFETY: `pthread_testcancel` has no preconditions. If it unwinds, this frame has nothing to
    // drop.
    unsafe { pthread_testcancel() };
    let mut place = MaybeUninit::<(Waiting, F)>::uninit();
    let wait = place.as_mut_ptr();
    let mut has_begun = false;
    let stepped = entry::short_number::<c_int>(name, || {
        let step = begin()?;
        // SAFETY: `wait` points to `place`, which has room for the pair and is aligned for it. No
        // other reference to it exists.
        let (waiting, step) = unsafe {
            wait.write((Waiting::new(), step));
            &mut *wait
        };
        has_begun = true;
        step(waiting).map(c_int::from)
    });
    if stepped != PENDING {
        if has_begun {
            let code = errno::last();
            end::<F>(wait.cast());
            errno::set(code);
        }
        return status_of(stepped);
    }
    let mut buffer = MaybeUninit::<CleanupBuffer>::uninit();
    // SAFETY: the buffer stays in this frame until it is popped below. `wait` points to an
    // initialized pair. `end` drops it on cancellation, or at the pop below if the last step
    // panicked.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), end::<F>, wait.cast()) };
    let mut is_over = false;
    let stepped = loop {
        // SAFETY: the pair at `wait` is initialized, and no other reference to it exists. `fds` is
        // a slice in it and its own length is passed. If `poll` unwinds, this frame has nothing to
        // drop; the handler drops the pair after that.
        let polled = unsafe {
            let (fds, timeout) = (*wait).0.sleep();
            poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout)
        };
        let code = errno::last();
        let stepped = entry::number::<c_int>(name, || {
            let polled = match polled {
                -1 => Err(io::Error::from_raw_os_error(code.0)),
                _ => Ok(()),
            };
            // SAFETY: the pair at `wait` was written by the first step and is not dropped yet, and
            // no other reference to it exists.
            let (waiting, step) = unsafe { &mut *wait };
            let done = waiting
                .woke(polled)
                .map_err(Errno::from)
                .and_then(|()| step(waiting));
            if let Ok(false) = done {
                return Ok(PENDING);
            }
            is_over = true;
            // SAFETY: the first step has written the pair at `wait`, and `is_over` prevents a
            // second drop.
            unsafe { wait.drop_in_place() };
            done.map(c_int::from)
        });
        if stepped != PENDING {
            break stepped;
        }
    };
    let code = errno::last();
    // SAFETY: this is the thread's innermost buffer, since every function called since the push has
    // popped its own.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), c_int::from(!is_over)) };
    errno::set(code);
    status_of(stepped)
}

/// The value of a step after which the wait goes on. The last step returns 1, or -1 on failure.
const PENDING: c_int = 0;

/// Returns the C function's result for the value of its last step.
fn status_of(stepped: c_int) -> c_int {
    stepped.min(0)
}

/// Drops the state of a wait, with cancellation disabled. This is also the thread's cleanup
/// handler.
extern "C" fn end<F>(wait: *mut c_void) {
    entry::value("the end of a wait", (), || {
        // SAFETY: `wait` calls this once, or registers it as the handler, which runs once. In both
        // cases the pointer is to an initialized pair.
        unsafe { wait.cast::<(Waiting, F)>().drop_in_place() };
    });
}
