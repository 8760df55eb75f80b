//! Reading of sysfs. urxe's own devices have no files there; drivers and a few programs use these
//! calls to read properties of the host.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use libc::c_int;

use super::entry;
use super::errno::Errno;
use super::ffi::IBV_SYSFS_PATH_MAX;

const DEFAULT_PATH: &CStr = c"/sys";

/// Returns the path of sysfs: `SYSFS_PATH` without trailing slashes, or `/sys`.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<Option<CString>> = OnceLock::new();
    entry::value("ibv_get_sysfs_path", DEFAULT_PATH.as_ptr(), || {
        PATH.get_or_init(path_from_environment)
            .as_deref()
            .unwrap_or(DEFAULT_PATH)
            .as_ptr()
    })
}

/// Returns the path from the environment, unless the process has more rights than its user.
fn path_from_environment() -> Option<CString> {
    // SAFETY: these calls have no arguments and no preconditions, and cannot fail.
    let elevated =
        unsafe { libc::getuid() != libc::geteuid() || libc::getgid() != libc::getegid() };
    if elevated {
        return None;
    }
    let value = std::env::var_os("SYSFS_PATH")?;
    let bytes = value.as_bytes();
    let bytes = &bytes[..bytes.len().min(IBV_SYSFS_PATH_MAX)];
    let end = bytes
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last + 1);
    CString::new(&bytes[..end]).ok()
}

/// Reads `dir/file` into `buf` as a C string without a final newline. Returns its length, or -1,
/// also if it does not fit `size` bytes.
///
/// # Safety
/// `dir` and `file` must be null or C strings. `buf` must be null or point to `size` writable
/// bytes.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    entry::number("ibv_read_sysfs_file", || {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `dir` and `file` are non-null (checked above) and C strings: the caller's
        // contract, section Safety.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = [dir.to_bytes(), file.to_bytes()].join(&b'/');
        let text = read_text(Path::new(OsStr::from_bytes(&path)), size)?;
        // SAFETY: `buf` is non-null (checked above) and points to `size` writable bytes: the
        // caller's contract, section Safety. `read_text` leaves room for the NUL within `size`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, text.len());
            buf.add(text.len()).write(0);
        }
        c_int::try_from(text.len()).map_err(|_| Errno(libc::EOVERFLOW))
    })
}

/// Returns the contents of `path` without a final newline, if they and a NUL fit `room` bytes.
fn read_text(path: &Path, room: usize) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    // One more byte than fits distinguishes a text that just fits from one that is cut off.
    File::open(path)?
        .take(room as u64 + 1)
        .read_to_end(&mut text)?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if text.len() >= room {
        Err(Errno(libc::EOVERFLOW))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads /proc/sys/kernel/ostype, which is «Linux
    /// » on every host, into `room` bytes.
    fn os_type(room: usize) -> (c_int, Vec<u8>) {
        let mut buf = vec![0x7f_u8; 16];
        let (dir, file) = (c"/proc/sys/kernel", c"ostype");
        // SAFETY: two C string literals, and a buffer that is larger than every `room` of the
        // tests.
        let res = unsafe {
            ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), buf.as_mut_ptr().cast(), room)
        };
        (res, buf)
    }

    #[test]
    fn text_comes_without_its_newline_and_with_a_nul() {
        let (res, buf) = os_type(16);
        assert_eq!(res, 5);
        assert_eq!(&buf[..7], b"Linux\0\x7f");
    }

    #[test]
    fn text_that_does_not_fit_is_an_error_and_touches_nothing() {
        assert_eq!(os_type(6).0, 5);
        for room in [0, 1, 5] {
            let (res, buf) = os_type(room);
            assert_eq!(res, -1);
            assert_eq!(buf, [0x7f; 16]);
        }
    }

    #[test]
    fn missing_file_and_null_pointers_are_errors() {
        let mut buf = [0 as c_char; 4];
        // SAFETY: C string literals, null, and a buffer of the given size.
        unsafe {
            let none = ibv_read_sysfs_file(c"/".as_ptr(), c"no/such".as_ptr(), buf.as_mut_ptr(), 4);
            assert_eq!(none, -1);
            let null = ibv_read_sysfs_file(std::ptr::null(), c"x".as_ptr(), buf.as_mut_ptr(), 4);
            assert_eq!(null, -1);
        }
    }
}
