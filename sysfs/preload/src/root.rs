//! The directory with the files, as the environment tells when the program starts.
//!
//! It is copied then: programs overwrite their environment, to change what `ps` shows of them.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../../src/environment.rs"]
mod environment;

pub use environment::{LONGEST_ROOT, VARIABLE};

/// The length before anything was remembered.
const UNKNOWN: usize = usize::MAX;

struct Root {
    bytes: UnsafeCell<[u8; LONGEST_ROOT]>,
    length: AtomicUsize,
}

// SAFETY: the bytes are written once, by `remember`, before `length` says that there are any.
unsafe impl Sync for Root {}

static ROOT: Root = Root {
    bytes: UnsafeCell::new([0; LONGEST_ROOT]),
    length: AtomicUsize::new(UNKNOWN),
};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Copies what the environment tells. To be called once, by the dynamic linker.
pub fn remember() {
    let root = from_environment().unwrap_or_default();
    // SAFETY: nobody reads the bytes while the length is unknown, and this is called once. The root
    // is no longer than they are.
    unsafe { ptr::copy_nonoverlapping(root.as_ptr(), ROOT.bytes.get().cast(), root.len()) };
    ROOT.length.store(root.len(), Ordering::Release);
}

/// The directory, without a slash at its end; nothing where none is named.
pub fn root() -> Option<&'static [u8]> {
    match ROOT.length.load(Ordering::Acquire) {
        0 => None,
        // Other libraries may be started before this one, and open files.
        UNKNOWN => from_environment(),
        // SAFETY: that many bytes were written before, and never are again.
        length => Some(unsafe { slice::from_raw_parts(ROOT.bytes.get().cast(), length) }),
    }
}

/// `getenv` is not used: another library may stand in its place.
fn from_environment() -> Option<&'static [u8]> {
    // SAFETY: the C library's environment is an array of C strings that ends with a null pointer;
    // it may not have been set yet.
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
