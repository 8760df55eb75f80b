//! What functions that urxe does not have return. Which function is of which shape, and its errno,
//! stands in `symbols.txt`; `build.rs` writes a function for each row from these.

use libc::{c_int, c_void};

use super::entry;
use super::errno::{self, Errno};

/// The errno itself, for functions that return 0 or an errno.
pub fn errno(name: &'static str, error: c_int) -> c_int {
    entry::status(name, || refuse(name, error))
}

/// -1 and `errno`. As wide as the widest of these functions returns, which serves the narrower.
pub fn minus1(name: &'static str, error: c_int) -> isize {
    entry::number(name, || refuse(name, error))
}

/// A null pointer and `errno`.
pub fn null(name: &'static str, error: c_int) -> *mut c_void {
    entry::pointer(name, || refuse(name, error))
}

/// 0 and `errno`, for functions that have no value for failure.
pub fn zero(name: &'static str, error: c_int) -> u64 {
    entry::value(name, 0, || {
        errno::set(Errno(error));
        0
    })
}

/// Nothing, for functions that return nothing.
pub fn void(name: &'static str) {
    entry::value(name, (), || ());
}

fn refuse<T>(name: &'static str, error: c_int) -> Result<T, Errno> {
    tracing::debug!(target: "urxe::abi", name, "not supported, see docs/SUPPORT.md");
    Err(Errno(error))
}
