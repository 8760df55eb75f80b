//! Cancellation of threads: pthread_cancel(3).
//!
//! The functions that wait for an event are cancellation points, as rdma-core's are; the others are not:
//! `docs/THREADS.md`. glibc cancels a thread by unwinding its stack by force, which must not meet a frame that
//! catches panics or has something to drop. So every function runs with cancellation disabled, and the
//! functions that wait sleep in [`wait`]: a frame of plain data, where cancellation is as the caller has set
//! it. The C library's functions are declared here as ones that unwind, as the compiler would end the
//! process otherwise.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;

use libc::{nfds_t, pollfd};
use urxe_driver::waiting::{Sleep, Waiting};

use super::entry;
use super::errno::{self, Errno};

/// `struct _pthread_cleanup_buffer`: the C library's own.
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
    /// What `pthread_cleanup_push` of C programs without exceptions was in the Linux Standard Base. The
    /// macro of today is setjmp(3) in the caller's frame, which Rust does not have.
    fn _pthread_cleanup_push(
        buffer: *mut CleanupBuffer,
        routine: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
}

/// For functions that wait for an event, and return 0, or -1 and set `errno`. `begin` checks the arguments; what
/// it returns takes one step of the wait, and says whether that was the last. The thread may be cancelled when
/// the function is entered, and while it sleeps between two steps: then the step function is dropped, and
/// no event is lost. What `begin` has captured is `Copy`, so that this frame has nothing to drop.
pub(super) fn wait<F>(name: &'static str, begin: impl FnOnce() -> Result<F, Errno> + Copy) -> c_int
where
    F: FnMut(&mut Waiting) -> Result<bool, Errno>,
{
    // SAFETY: it may be called at any time. If it unwinds, this frame has nothing to drop.
    unsafe { pthread_testcancel() };
    let mut place = MaybeUninit::<(Waiting, F)>::uninit();
    let wait = place.as_mut_ptr();
    let mut sleep = Sleep::for_milliseconds(0);
    // Usually there is an event already: then the wait is over before it has a place here.
    let stepped = entry::number::<c_int>(name, || {
        let (mut waiting, mut step) = (Waiting::new(), begin()?);
        let done = step(&mut waiting)?;
        if !done {
            sleep = waiting.sleep();
            // SAFETY: `wait` points at room for it.
            unsafe { wait.write((waiting, step)) };
        }
        Ok(done.into())
    });
    if stepped != PENDING {
        return status_of(stepped);
    }
    let mut buffer = MaybeUninit::<CleanupBuffer>::uninit();
    // SAFETY: the buffer stays where it is until it is popped below, in this same frame. `wait` points at an
    // initialized object, which `end` drops once: when the thread is cancelled, or below.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), end::<F>, wait.cast()) };
    let stepped = loop {
        let (fds, timeout) = sleep.arguments();
        // SAFETY: pointer and length are those of a slice of this frame. If it unwinds, this frame has nothing to
        // drop.
        let polled = unsafe { poll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout) };
        let code = errno::last();
        let stepped = entry::number::<c_int>(name, || {
            let polled = match polled {
                -1 => Err(io::Error::from_raw_os_error(code.0)),
                _ => Ok(()),
            };
            // SAFETY: initialized above, and nothing else refers to it.
            let (waiting, step) = unsafe { &mut *wait };
            waiting.woke(polled, &sleep)?;
            let done = step(waiting)?;
            sleep = waiting.sleep();
            Ok(done.into())
        });
        if stepped != PENDING {
            break stepped;
        }
    };
    let code = errno::last();
    // SAFETY: it is this thread's innermost buffer: what was called since has popped its own.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), 1) };
    errno::set(code);
    status_of(stepped)
}

/// What a step returns that was not the last one. The last one returns 1, or -1.
const PENDING: c_int = 0;

/// What a C function returns after its last step.
fn status_of(stepped: c_int) -> c_int {
    stepped.min(0)
}

/// Ends a wait: a thread's cleanup handler.
extern "C" fn end<F>(wait: *mut c_void) {
    entry::value("the end of a wait", (), || {
        // SAFETY: the cleanup handler is called once, with the pointer that was given with it.
        unsafe { wait.cast::<(Waiting, F)>().drop_in_place() };
    });
}
