//! The wrappers of C functions. Every exported function, and every function pointer in an object,
//! uses one of the wrappers below. They catch panics, trace the call and report failure in the form
//! that C callers of that function expect.
//!
//! An exported function is a plain `pub unsafe extern "C" fn` with its C name in a module of this
//! package. Its body is a closure passed to one of these wrappers, and its row in `symbols.txt`
//! contains `done`.
//!
//! Only the functions that use `cancellation::wait` are cancellation points.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::c_int;
use tracing::level_filters::LevelFilter;
use urxe_driver::path;
use urxe_net::thread;

use super::errno::{self, Errno};

/// The error of a call that panicked: `EIO`, an internal failure rather than a caller's error.
const AFTER_PANIC: Errno = Errno(libc::EIO);

/// Wraps a function that returns 0 or an errno value. A failure also sets `errno`, as in rdma-core,
/// because programs print it.
pub fn status(name: &'static str, call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status_of(guarded(name, call))
}

fn status_of(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            error.0
        }
    }
}

/// Wraps a function that returns a number, or -1 and sets `errno`.
pub fn number<T: From<i8>>(name: &'static str, call: impl FnOnce() -> Result<T, Errno>) -> T {
    number_of(guarded(name, call))
}

fn number_of<T: From<i8>>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|error| {
        errno::set(error);
        T::from(-1)
    })
}

/// Wraps a function that returns 0, or -1 and sets `errno`.
pub fn status_or_minus_one(name: &'static str, call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(name, || call().map(|()| 0))
}

/// Wraps a function that returns a count, or a negative errno value.
pub fn count(name: &'static str, call: impl FnOnce() -> Result<usize, Errno>) -> isize {
    guarded(name, call).map_or_else(|error| -(error.0 as isize), usize::cast_signed)
}

/// Wraps a function that returns a pointer, or null and sets `errno`.
pub fn pointer<T>(name: &'static str, call: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(name, call).unwrap_or_else(|error| {
        errno::set(error);
        std::ptr::null_mut()
    })
}

/// Wraps a function that cannot report failure; it returns `fallback` after a panic.
pub fn value<T>(name: &'static str, fallback: T, call: impl FnOnce() -> T) -> T {
    guarded(name, || Ok(call())).unwrap_or(fallback)
}

/// Wraps a function as [`value`] does, but leaves cancellation enabled.
///
/// For functions so short that disabling cancellation would be a large part of their cost. `call`
/// must make no system call that is a cancellation point, except within
/// [`thread::without_cancellation`].
pub fn short<T>(name: &'static str, fallback: T, call: impl FnOnce() -> T) -> T {
    caught(name, || Ok(call())).unwrap_or(fallback)
}

/// Wraps a function as [`status`] does, but leaves cancellation enabled, see [`short`].
pub fn short_status(name: &'static str, call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status_of(caught(name, call))
}

/// Wraps a function as [`number`] does, but leaves cancellation enabled, see [`short`].
pub fn short_number<T: From<i8>>(name: &'static str, call: impl FnOnce() -> Result<T, Errno>) -> T {
    number_of(caught(name, call))
}

/// Reads the value that a C pointer argument points to.
///
/// The value may be at any address. C programs pack structures of this API into their own, and the
/// kernel and NICs' libraries accept that.
///
/// # Errors
/// `EINVAL` if `pointer` is null.
///
/// # Safety
/// If `pointer` is not null, it must point to a readable, initialized `T`.
pub unsafe fn read<T: Copy>(pointer: *const T) -> Result<T, Errno> {
    if pointer.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `pointer` is non-null (checked above) and points to a readable `T`: the caller's
    // contract, section Safety. An unaligned read needs no alignment.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Writes a value to the place that a C pointer argument points to, which may be at any address.
///
/// # Errors
/// `EINVAL` if `pointer` is null.
///
/// # Safety
/// If `pointer` is not null, it must point to `size_of::<T>()` writable bytes.
pub unsafe fn write<T>(pointer: *mut T, value: T) -> Result<(), Errno> {
    if pointer.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: `pointer` is non-null (checked above) and points to writable memory for a `T`: the
    // caller's contract, section Safety. An unaligned write needs no alignment.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Writes an extensible structure to a caller that has `room` bytes for it.
///
/// The caller's version of the structure may be shorter or longer than `T`. Members that do not fit
/// are omitted; bytes after the last member of `T` are set to zero.
///
/// # Errors
/// `EINVAL` if `pointer` is null.
///
/// # Safety
/// If `pointer` is not null, it must point to `room` writable bytes.
pub unsafe fn write_as_known<T: Copy>(
    pointer: *mut T,
    room: usize,
    value: &T,
) -> Result<(), Errno> {
    if pointer.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    let known = room.min(size_of::<T>());
    let bytes = pointer.cast::<u8>();
    // SAFETY: `pointer` is non-null (checked above) and points to `room` writable bytes: the
    // caller's contract, section Safety. `known` exceeds neither `room` nor the size of `value`.
    // The copy is of bytes, so it needs no alignment and may end within a member or include
    // padding.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast(), bytes, known);
        bytes.add(known).write_bytes(0, room - known);
    }
    Ok(())
}

/// Runs a call with cancellation disabled.
fn guarded<T>(name: &'static str, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    thread::without_cancellation(|| caught(name, call))
}

/// Runs a call, in a tracing span if tracing is enabled. Catches panics, because unwinding into C
/// is undefined behaviour.
fn caught<T>(name: &'static str, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // A disabled span would still be entered and dropped in every call.
    let span = (LevelFilter::current() >= LevelFilter::TRACE)
        .then(|| tracing::trace_span!(target: "urxe::abi", "call", name).entered());
    // A panic may leave a queue pair half changed. `panicked` has all queue pairs fail, so what a
    // caller can still observe is consistent, and locks need no poisoning.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| panicked(name));
    if let Err(error) = &result {
        report_failure(name, error);
    }
    // Usually there is no span. Without this test, the function that drops an `Option` of a span
    // would be called.
    if let Some(span) = span {
        drop(span);
    }
    result
}

#[cold]
fn panicked<T>(name: &'static str) -> Result<T, Errno> {
    thread::without_cancellation(|| {
        tracing::error!(target: "urxe::abi", name, "panicked; this is a bug in urxe");
        // If the engine cannot be made, there are no queue pairs.
        let _ = catch_unwind(|| path::get().panicked());
    });
    Err(AFTER_PANIC)
}

#[cold]
fn report_failure(name: &'static str, error: &Errno) {
    // The subscriber may write to a file, and write(2) is a cancellation point.
    thread::without_cancellation(|| {
        tracing::debug!(target: "urxe::abi", name, %error, "failed");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_errno() -> i32 {
        std::io::Error::last_os_error()
            .raw_os_error()
            .expect("an errno")
    }

    #[test]
    fn failure_is_reported_as_each_kind_of_caller_expects() {
        assert_eq!(status("t", || Err(Errno(libc::ENOMEM))), libc::ENOMEM);
        assert_eq!(status("t", || Ok(())), 0);

        assert_eq!(number::<c_int>("t", || Err(Errno(libc::EAGAIN))), -1);
        assert_eq!(last_errno(), libc::EAGAIN);
        assert_eq!(number::<isize>("t", || Err(Errno(libc::ENODEV))), -1);
        assert_eq!(last_errno(), libc::ENODEV);
        assert_eq!(status_or_minus_one("t", || Ok(())), 0);

        assert_eq!(count("t", || Err(Errno(libc::EINVAL))), -22);
        assert_eq!(count("t", || Ok(3)), 3);

        assert!(pointer::<u8>("t", || Err(Errno(libc::EPERM))).is_null());
        assert_eq!(last_errno(), libc::EPERM);
    }

    #[test]
    fn panic_does_not_leave_the_call() {
        assert_eq!(status("t", || panic!("deliberate")), libc::EIO);
        assert!(pointer::<u8>("t", || panic!("deliberate")).is_null());
        assert_eq!(value("t", 7, || panic!("deliberate")), 7);
    }

    /// The progress thread fails the queue pairs then; see the tests of the driver.
    #[test]
    fn panic_is_reported_to_the_engine() {
        assert_eq!(status("t", || panic!("deliberate")), libc::EIO);
        assert!(path::get().counters().panics.get() > 0);
    }

    #[test]
    fn arguments_may_be_at_any_address_but_null() {
        let mut bytes = [0_u8; 9];
        let odd = bytes.as_mut_ptr().wrapping_byte_add(1).cast::<u64>();
        // SAFETY: each pointer is null, or points to 8 bytes of `bytes`.
        unsafe {
            assert_eq!(read::<u64>(std::ptr::null()), Err(Errno(libc::EINVAL)));
            assert_eq!(write(std::ptr::null_mut(), 1u64), Err(Errno(libc::EINVAL)));
            for place in [odd, odd.wrapping_byte_sub(1)] {
                assert_eq!(write(place, u64::MAX - 1), Ok(()));
                assert_eq!(read(place), Ok(u64::MAX - 1));
            }
        }
    }

    #[test]
    fn an_extensible_structure_is_truncated_to_the_callers_size() {
        let value = 0x0403_0201_u32.to_le();
        for (room, expected) in [
            (0, [9; 8]),
            (2, [1, 2, 9, 9, 9, 9, 9, 9]),
            (4, [1, 2, 3, 4, 9, 9, 9, 9]),
            (7, [1, 2, 3, 4, 0, 0, 0, 9]),
        ] {
            let mut buffer = [9_u8; 8];
            // SAFETY: `room` is at most the buffer's length, and byte writes need no alignment.
            let result = unsafe { write_as_known(buffer.as_mut_ptr().cast(), room, &value) };
            assert_eq!((result, buffer), (Ok(()), expected));
        }
    }
}
