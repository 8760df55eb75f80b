//! How a C function is entered and left: every exported function and every function pointer in an
//! object is one of the shapes below. They catch panics, trace the call and report failure as C
//! callers of that function expect.
//!
//! An exported function is a plain `pub unsafe extern "C" fn` of its C name in a module of
//! this package, its body a closure given to one of these; its row in `symbols.txt` says `done`.
//!
//! No function is a cancellation point, but for those that are given to `cancellation::wait`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::c_int;
use urxe_net::thread;

use super::errno::{self, Errno};

/// What a call that panicked reports: something broke, and it was not the caller.
const AFTER_PANIC: Errno = Errno(libc::EIO);

/// For functions that return 0 or an errno value. They set `errno` too: rdma-core's do, and
/// programs have come to print it.
pub fn status(name: &'static str, call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(name, call) {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            error.0
        }
    }
}

/// For functions that return a number, or -1 and set `errno`.
pub fn number<T: From<i8>>(name: &'static str, call: impl FnOnce() -> Result<T, Errno>) -> T {
    guarded(name, call).unwrap_or_else(|error| {
        errno::set(error);
        T::from(-1)
    })
}

/// For functions that return 0, or -1 and set `errno`.
pub fn status_or_minus_one(name: &'static str, call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(name, || call().map(|()| 0))
}

/// For functions that return how many there are, or a negative errno value.
pub fn count(name: &'static str, call: impl FnOnce() -> Result<usize, Errno>) -> isize {
    guarded(name, call).map_or_else(|error| -(error.0 as isize), usize::cast_signed)
}

/// For functions that return a pointer, or null and set `errno`.
pub fn pointer<T>(name: &'static str, call: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(name, call).unwrap_or_else(|error| {
        errno::set(error);
        std::ptr::null_mut()
    })
}

/// For functions that cannot report failure; `fallback` is what they return after a panic.
pub fn value<T>(name: &'static str, fallback: T, call: impl FnOnce() -> T) -> T {
    guarded(name, || Ok(call())).unwrap_or(fallback)
}

/// The same, for functions so short that disabling cancellation would be most of their work. `call` makes no
/// system call that is a cancellation point.
pub fn short<T>(name: &'static str, fallback: T, call: impl FnOnce() -> T) -> T {
    caught(name, || Ok(call())).unwrap_or(fallback)
}

/// Reads what a C pointer argument points at.
///
/// # Errors
/// `EINVAL` if it is null or not aligned for its type.
///
/// # Safety
/// A pointer that is not null points at a `T` that can be read.
pub unsafe fn read<T: Copy>(pointer: *const T) -> Result<T, Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: not null and aligned as checked; the rest is the caller's to promise.
    Ok(unsafe { pointer.read() })
}

/// Writes to what a C pointer argument points at.
///
/// # Errors
/// `EINVAL` if it is null or not aligned for its type.
///
/// # Safety
/// A pointer that is not null points at room for a `T`.
pub unsafe fn write<T>(pointer: *mut T, value: T) -> Result<(), Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: not null and aligned as checked; the rest is the caller's to promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes a structure that grows from version to version to a caller that has `room` bytes for it:
/// as much of it as the caller knows, and zeros in what the caller knows and we do not.
///
/// # Errors
/// `EINVAL` if the pointer is null.
///
/// # Safety
/// A pointer that is not null points at `room` bytes.
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
    // SAFETY: at most `room` bytes are written and at most the value's are read; as bytes, so that
    // a part of a structure and its padding are as good as the whole.
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

/// Runs a call in its span. A panic ends here: unwinding into C is undefined.
fn caught<T>(name: &'static str, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let _span = tracing::trace_span!(target: "urxe::abi", "call", name).entered();
    // What a panicking call leaves half done is guarded by the locks that it poisons.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        tracing::error!(target: "urxe::abi", name, "panicked; this is a bug in urxe");
        Err(AFTER_PANIC)
    });
    if let Err(error) = &result {
        tracing::debug!(target: "urxe::abi", name, %error, "failed");
    }
    result
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

    #[test]
    fn null_and_misaligned_arguments_are_invalid() {
        let words = [1u64, 2];
        let odd = words.as_ptr().wrapping_byte_add(1);
        // SAFETY: each pointer is null, misaligned or good for its type.
        unsafe {
            assert_eq!(read::<u64>(std::ptr::null()), Err(Errno(libc::EINVAL)));
            assert_eq!(read(odd), Err(Errno(libc::EINVAL)));
            assert_eq!(read(words.as_ptr()), Ok(1));
            assert_eq!(write(std::ptr::null_mut(), 1u64), Err(Errno(libc::EINVAL)));
        }
    }

    #[test]
    fn growing_structure_is_written_as_far_as_the_caller_knows_it() {
        let value = 0x0403_0201_u32.to_le();
        for (room, expected) in [
            (0, [9; 8]),
            (2, [1, 2, 9, 9, 9, 9, 9, 9]),
            (4, [1, 2, 3, 4, 9, 9, 9, 9]),
            (7, [1, 2, 3, 4, 0, 0, 0, 9]),
        ] {
            let mut buffer = [9_u8; 8];
            // SAFETY: `room` is within the buffer, and bytes need no alignment.
            let result = unsafe { write_as_known(buffer.as_mut_ptr().cast(), room, &value) };
            assert_eq!((result, buffer), (Ok(()), expected));
        }
    }
}
