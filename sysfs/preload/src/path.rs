//! The paths that are replaced, and their replacements.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

use crate::next::preserve_errno;
use crate::root::root;

/// Directories of the kernel, and their entries that are replaced.
const REPLACED: [(&[u8], &[&[u8]]); 2] = [
    (b"/sys/class", &[b"infiniband", b"infiniband_verbs"]),
    (b"/dev", &[b"infiniband"]),
];

/// The longest path with its NUL.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Calls a function with the replacement of `path`, or with `path` itself. A relative path is
/// relative to the open `directory`. `errno` is that of the function.
///
/// # Safety
/// `path` must be null or a C string.
pub unsafe fn with<R>(
    directory: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let Some(root) = root().filter(|_| !path.is_null()) else {
        return call(path);
    };
    // SAFETY: `path` is non-null and a C string by the contract in section Safety.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let parent = match bytes.first() {
        Some(b'/') if is_replaced(bytes) => &b""[..],
        Some(b'/') | None => return call(path),
        Some(_) => match replaced_from(directory, bytes) {
            Some(parent) => parent,
            None => return call(path),
        },
    };
    with_parts(&[root, parent, bytes], path, call)
}

/// A separate function, because only replaced paths need the buffer on the stack.
#[inline(never)]
fn with_parts<R>(
    parts: &[&[u8]; 3],
    otherwise: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let mut buffer = [MaybeUninit::<u8>::uninit(); PATH_MAX];
    let bytes = parts.iter().copied().flatten().copied().chain([0]);
    if parts.iter().map(|part| part.len()).sum::<usize>() >= PATH_MAX {
        // Too long with the root. The unreplaced path does not exist, and the kernel reports that.
        return call(otherwise);
    }
    for (place, byte) in buffer.iter_mut().zip(bytes) {
        place.write(byte);
    }
    call(buffer.as_ptr().cast())
}

/// Returns whether an absolute path is replaced. A path with `..` before the replaced entry is not,
/// because it may go through a link.
fn is_replaced(path: &[u8]) -> bool {
    REPLACED.iter().any(|(directory, entries)| {
        let mut rest = components(path);
        components(directory).all(|name| rest.next() == Some(name))
            && rest.next().is_some_and(|name| entries.contains(&name))
    })
}

/// Returns the directory, with a slash, of a relative path that is replaced.
fn replaced_from(directory: c_int, path: &[u8]) -> Option<&'static [u8]> {
    let name = components(path).next()?;
    let mut entries = REPLACED.iter().flat_map(|(_, entries)| entries.iter());
    // Checks the names first, because finding the directory takes a system call.
    if !entries.any(|entry| *entry == name) {
        return None;
    }
    let mut buffer = [0; 16];
    let parent = directory_path(directory, &mut buffer)?;
    let (parent, _) = REPLACED
        .iter()
        .find(|(replaced, entries)| *replaced == parent && entries.contains(&name))?;
    Some(if *parent == b"/dev" {
        b"/dev/"
    } else {
        b"/sys/class/"
    })
}

/// Returns the path of an open directory, if it fits into the buffer.
fn directory_path(directory: c_int, buffer: &mut [u8; 16]) -> Option<&[u8]> {
    const START: &[u8] = b"/proc/self/fd/";
    let mut link = [0; START.len() + 11];
    let link = match directory {
        libc::AT_FDCWD => c"/proc/self/cwd",
        number => {
            link[..START.len()].copy_from_slice(START);
            write_number(u32::try_from(number).ok()?, &mut link[START.len()..]);
            CStr::from_bytes_until_nul(&link).ok()?
        }
    };
    // SAFETY: `link` is NUL-terminated and the buffer has this length. This is a direct system
    // call, because `readlink` is interposed.
    let length = preserve_errno(|| unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            link.as_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    });
    let length = usize::try_from(length).ok()?;
    buffer.get(..length)
}

/// Writes a number in decimal to the start of a buffer.
fn write_number(number: u32, to: &mut [u8]) {
    let digits = number.checked_ilog10().unwrap_or(0);
    for (place, power) in to.iter_mut().zip((0..=digits).rev()) {
        *place = b'0' + (number / 10u32.pow(power) % 10) as u8;
    }
}

/// Returns the names in a path, without empty names and `.`.
fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty() && *name != b".")
}

/// Returns the number of bytes at the start of a path that are the root of the view.
pub fn hidden(path: &[u8]) -> usize {
    let Some(root) = root() else { return 0 };
    hidden_by(root, path)
}

fn hidden_by(root: &[u8], path: &[u8]) -> usize {
    let is_inside = path
        .strip_prefix(root)
        .is_some_and(|rest| rest.first() == Some(&b'/'));
    if is_inside { root.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_classes_and_nodes_are_replaced() {
        for path in [
            &b"/sys/class/infiniband"[..],
            b"/sys/class/infiniband/",
            b"//sys/./class//infiniband/urxe_lo/ports",
            b"/sys/class/infiniband_verbs/abi_version",
            b"/dev/infiniband/rdma_cm",
            b"/sys/class/infiniband/../net",
        ] {
            assert!(is_replaced(path), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn other_paths_are_not() {
        for path in [
            &b"/"[..],
            b"/sys/class",
            b"/sys/class/net",
            b"/sys/class/infiniband_mad",
            b"/sys/class/infinibandx",
            b"/sys/class/net/lo/../infiniband",
            b"/dev/infiniband_verbs",
            b"/home/sys/class/infiniband",
        ] {
            assert!(!is_replaced(path), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn relative_path_counts_from_its_directory() {
        let open = |path: &CStr| {
            // SAFETY: `path` is a C string.
            let fd = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY) };
            assert!(fd >= 0);
            fd
        };
        let dev = open(c"/dev");
        assert_eq!(replaced_from(dev, b"infiniband/x"), Some(&b"/dev/"[..]));
        assert_eq!(replaced_from(dev, b"./infiniband"), Some(&b"/dev/"[..]));
        assert_eq!(replaced_from(dev, b"infiniband_verbs"), None);
        assert_eq!(replaced_from(dev, b"null"), None);
        assert_eq!(replaced_from(open(c"/"), b"infiniband"), None);
        assert_eq!(replaced_from(-1, b"infiniband"), None);
        assert_eq!(replaced_from(libc::AT_FDCWD, b"infiniband"), None);
    }

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 7, 10, 1234, u32::MAX] {
            let mut text = [0; 11];
            write_number(number, &mut text);
            let text = CStr::from_bytes_until_nul(&text).expect("ends");
            assert_eq!(text.to_str(), Ok(&*number.to_string()));
        }
    }

    #[test]
    fn directory_is_hidden_only_as_a_whole() {
        assert_eq!(hidden_by(b"/tmp/x", b"/tmp/x/sys/class/infiniband"), 6);
        assert_eq!(hidden_by(b"/tmp/x", b"/tmp/xy/sys"), 0);
        assert_eq!(hidden_by(b"/tmp/x", b"/tmp/x"), 0);
    }
}
