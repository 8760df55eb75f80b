//! The root directory of the view, as the environment contains it at program start.
//!
//! It is copied, because programs overwrite their environment to change what `ps` shows.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

mod environment;

pub use environment::{LONGEST_ROOT, VARIABLE};

/// The length before `remember` has run.
const UNKNOWN: usize = usize::MAX;

struct Root {
    bytes: UnsafeCell<[u8; LONGEST_ROOT]>,
    length: AtomicUsize,
}

// SAFETY: `remember` writes the bytes once, before it publishes `length`; afterwards they are only
// read.
unsafe impl Sync for Root {}

static ROOT: Root = Root {
    bytes: UnsafeCell::new([0; LONGEST_ROOT]),
    length: AtomicUsize::new(UNKNOWN),
};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Copies the root from the environment. The dynamic linker calls this once.
pub fn remember() {
    let root = from_environment().unwrap_or_default();
    // SAFETY: no thread reads the bytes while the length is unknown, and this runs once. The root
    // is at most as long as the buffer.
    unsafe { ptr::copy_nonoverlapping(root.as_ptr(), ROOT.bytes.get().cast(), root.len()) };
    ROOT.length.store(root.len(), Ordering::Release);
}

/// Returns the root without a trailing slash, or `None` if the variable is not set.
pub fn root() -> Option<&'static [u8]> {
    match ROOT.length.load(Ordering::Acquire) {
        0 => None,
        // The constructors of other libraries may run earlier and open files.
        UNKNOWN => from_environment(),
        // SAFETY: `remember` initialized `length` bytes, which never change afterwards.
        length => Some(unsafe { slice::from_raw_parts(ROOT.bytes.get().cast(), length) }),
    }
}

/// Reads the environment without `getenv`, which another library may interpose.
fn from_environment() -> Option<&'static [u8]> {
    // SAFETY: `environ` is null or a null-terminated array of C strings.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let value = CStr::from_ptr(*entry)
                .to_bytes()
                .strip_prefix(VARIABLE.as_bytes())
                .and_then(|rest| rest.strip_prefix(b"="));
            if let Some(value) = value {
                return usable(value).then_some(value);
            }
            entry = entry.add(1);
        }
    }
    None
}

fn usable(root: &[u8]) -> bool {
    root.len() > 1 && root.len() <= LONGEST_ROOT && root[0] == b'/' && !root.ends_with(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_an_absolute_path_that_fits() {
        assert!(usable(b"/tmp/x"));
        for root in [&b""[..], b"/", b"x", b"/x/", &[b'/'; LONGEST_ROOT + 1]] {
            assert!(!usable(root));
        }
    }

    #[test]
    fn without_the_variable_there_is_none() {
        assert_eq!(from_environment(), None);
        assert_eq!(root(), None);
    }
}
