//! Errors in the C ABI's own terms.

use std::fmt;

use libc::c_int;

/// An `errno` value: what a call that failed reports. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    /// The error of the system call, or `EIO` for one that came from none.
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Sets the calling thread's `errno`.
pub fn set(errno: Errno) {
    // SAFETY: the C library's errno of this thread is always there to be written.
    unsafe { *libc::__errno_location() = errno.0 }
}
