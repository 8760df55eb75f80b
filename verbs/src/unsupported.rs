//! Results of functions that urxe does not support. `symbols.txt` lists the kind of result and the
//! errno of each function; `build.rs` generates a function for each row from these.

use libc::{c_int, c_void};

use super::entry;
use super::errno::{self, Errno};

/// Returns the errno, for functions that return 0 or an errno.
pub fn errno(name: &'static str, error: c_int) -> c_int {
    entry::status(name, || refuse(name, error))
}

/// Returns -1 and sets `errno`. The result is as wide as the widest of these functions returns,
/// which also serves the narrower ones.
pub fn minus1(name: &'static str, error: c_int) -> isize {
    entry::number(name, || refuse(name, error))
}

/// Returns null and sets `errno`.
pub fn null(name: &'static str, error: c_int) -> *mut c_void {
    entry::pointer(name, || refuse(name, error))
}

/// Returns 0 and sets `errno`, for functions that have no result for failure.
pub fn zero(name: &'static str, error: c_int) -> u64 {
    entry::value(name, 0, || {
        errno::set(Errno(error));
        0
    })
}

/// Returns nothing, for functions without a result.
pub fn void(name: &'static str) {
    entry::value(name, (), || ());
}

fn refuse<T>(name: &'static str, error: c_int) -> Result<T, Errno> {
    tracing::debug!(target: "urxe::abi", name, "not supported, see docs/SUPPORT.md");
    Err(Errno(error))
}
