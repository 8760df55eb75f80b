//! Reading sysfs. Not for urxe's own devices, which have nothing there: drivers and a few programs
//! use these calls for what they want to know of the host.

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

/// Where sysfs is: `SYSFS_PATH` without slashes at its end, or `/sys`.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<Option<CString>> = OnceLock::new();
    entry::value("ibv_get_sysfs_path", DEFAULT_PATH.as_ptr(), || {
        PATH.get_or_init(path_from_environment)
            .as_deref()
            .unwrap_or(DEFAULT_PATH)
            .as_ptr()
    })
}

/// The environment counts only where the process has no more rights than who started it.
fn path_from_environment() -> Option<CString> {
    // SAFETY: these calls take nothing and cannot fail.
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

/// Reads `dir/file` into `buf` as a C string without the newline at its end. Returns its length, or
/// -1, also when `size` bytes cannot hold it.
///
/// # Safety
/// `dir` and `file` are C strings, and `buf` has room for `size` bytes.
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
        // SAFETY: not null as checked, and strings by the caller's promise.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = [dir.to_bytes(), file.to_bytes()].join(&b'/');
        let text = read_text(Path::new(OsStr::from_bytes(&path)), size)?;
        // SAFETY: read_text leaves room for the NUL within `size`, which the caller has at buf.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, text.len());
            buf.add(text.len()).write(0);
        }
        c_int::try_from(text.len()).map_err(|_| Errno(libc::EOVERFLOW))
    })
}

/// What `path` holds, without the newline at its end, if that and a NUL fit into `room` bytes.
fn read_text(path: &Path, room: usize) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    // One byte more than fits tells a text that just fits from one that is cut off.
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

    /// Reads /proc/sys/kernel/ostype, which is «Linux\n» on every host, into `room` bytes.
    fn os_type(room: usize) -> (c_int, Vec<u8>) {
        let mut buf = vec![0x7f_u8; 16];
        let (dir, file) = (c"/proc/sys/kernel", c"ostype");
        // SAFETY: two literals, and a buffer larger than every `room` that is asked for.
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
        // SAFETY: literals, null, and a buffer of the size given.
        unsafe {
            let none = ibv_read_sysfs_file(c"/".as_ptr(), c"no/such".as_ptr(), buf.as_mut_ptr(), 4);
            assert_eq!(none, -1);
            let null = ibv_read_sysfs_file(std::ptr::null(), c"x".as_ptr(), buf.as_mut_ptr(), 4);
            assert_eq!(null, -1);
        }
    }
}
