//! Functions that return a path. If the path is inside the view, its root is removed, so the
//! program gets the path that it knows.

use std::ffi::{CStr, c_char};
use std::ptr;

use libc::AT_FDCWD;

use crate::next::{Failure, Next};
use crate::path;

type Text = *mut c_char;

static REALPATH: Next = Next::new("realpath\0");
static REALPATH_CHECKED: Next = Next::new("__realpath_chk\0");
static CANONICALIZE: Next = Next::new("canonicalize_file_name\0");
static GETCWD: Next = Next::new("getcwd\0");
static GETCWD_CHECKED: Next = Next::new("__getcwd_chk\0");
static CURRENT_DIRECTORY: Next = Next::new("get_current_dir_name\0");

/// The C library's functions behind the interposed ones.
pub static NEXT: &[&Next] = &[
    &REALPATH,
    &REALPATH_CHECKED,
    &CANONICALIZE,
    &GETCWD,
    &GETCWD_CHECKED,
    &CURRENT_DIRECTORY,
];

/// Removes the root of the view from a path in place.
///
/// # Safety
/// `text` must be null or a writable C string.
unsafe fn shorten(text: Text) -> Text {
    if text.is_null() {
        return text;
    }
    // SAFETY: `text` is non-null and a C string by the contract in section Safety. The reference
    // ends before the string changes.
    let (hidden, length) = unsafe {
        let bytes = CStr::from_ptr(text).to_bytes();
        (path::hidden(bytes), bytes.len())
    };
    // SAFETY: source and destination are inside the string: `length + 1` bytes, of which the first
    // `hidden` are removed.
    unsafe { ptr::copy(text.add(hidden), text, length - hidden + 1) };
    text
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realpath(path: *const c_char, to: Text) -> Text {
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract.
    unsafe {
        let next = REALPATH.get::<unsafe extern "C" fn(*const c_char, Text) -> Text>();
        let Some(next) = next else {
            return Failure::FAILURE;
        };
        shorten(path::with(AT_FDCWD, path, |path| next(path, to)))
    }
}

/// Interposes the fortified C function, which checks the size of the buffer.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, to: Text, room: usize) -> Text {
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract.
    unsafe {
        let next =
            REALPATH_CHECKED.get::<unsafe extern "C" fn(*const c_char, Text, usize) -> Text>();
        let Some(next) = next else {
            return Failure::FAILURE;
        };
        shorten(path::with(AT_FDCWD, path, |path| next(path, to, room)))
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> Text {
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract.
    unsafe {
        let next = CANONICALIZE.get::<unsafe extern "C" fn(*const c_char) -> Text>();
        let Some(next) = next else {
            return Failure::FAILURE;
        };
        shorten(path::with(AT_FDCWD, path, |path| next(path)))
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getcwd(to: Text, size: usize) -> Text {
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract.
    unsafe {
        let next = GETCWD.get::<unsafe extern "C" fn(Text, usize) -> Text>();
        next.map_or(Failure::FAILURE, |next| shorten(next(to, size)))
    }
}

/// Interposes the fortified C function, which checks the size of the buffer.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __getcwd_chk(to: Text, size: usize, room: usize) -> Text {
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract.
    unsafe {
        let next = GETCWD_CHECKED.get::<unsafe extern "C" fn(Text, usize, usize) -> Text>();
        next.map_or(Failure::FAILURE, |next| shorten(next(to, size, room)))
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn get_current_dir_name() -> Text {
    // SAFETY: the C library's function has this type and no preconditions.
    unsafe {
        let next = CURRENT_DIRECTORY.get::<unsafe extern "C" fn() -> Text>();
        next.map_or(Failure::FAILURE, |next| shorten(next()))
    }
}
