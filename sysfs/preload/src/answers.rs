//! The functions that give back a path. It is the one that the program knows, also when the program
//! is in the directory with the files.

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

/// The functions of the C library behind these.
pub static NEXT: &[&Next] = &[
    &REALPATH,
    &REALPATH_CHECKED,
    &CANONICALIZE,
    &GETCWD,
    &GETCWD_CHECKED,
    &CURRENT_DIRECTORY,
];

/// Takes the directory with the files out of a path, in its place.
///
/// # Safety
/// `text` is null or a C string that may be written to.
unsafe fn shorten(text: Text) -> Text {
    if text.is_null() {
        return text;
    }
    // SAFETY: a C string. The reference ends before it is changed.
    let (hidden, length) = unsafe {
        let bytes = CStr::from_ptr(text).to_bytes();
        (path::hidden(bytes), bytes.len())
    };
    // SAFETY: what stays lies within the string, its zero included.
    unsafe { ptr::copy(text.add(hidden), text, length - hidden + 1) };
    text
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realpath(path: *const c_char, to: Text) -> Text {
    // SAFETY: the C library's function of this type, with what the caller passed.
    unsafe {
        let next = REALPATH.get::<unsafe extern "C" fn(*const c_char, Text) -> Text>();
        let Some(next) = next else {
            return Failure::FAILURE;
        };
        shorten(path::with(AT_FDCWD, path, |path| next(path, to)))
    }
}

/// As in C, where the compiler knows how large the buffer is.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, to: Text, room: usize) -> Text {
    // SAFETY: the C library's function of this type, with what the caller passed.
    unsafe {
        let next =
            REALPATH_CHECKED.get::<unsafe extern "C" fn(*const c_char, Text, usize) -> Text>();
        let Some(next) = next else {
            return Failure::FAILURE;
        };
        shorten(path::with(AT_FDCWD, path, |path| next(path, to, room)))
    }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> Text {
    // SAFETY: the C library's function of this type, with what the caller passed.
    unsafe {
        let next = CANONICALIZE.get::<unsafe extern "C" fn(*const c_char) -> Text>();
        let Some(next) = next else {
            return Failure::FAILURE;
        };
        shorten(path::with(AT_FDCWD, path, |path| next(path)))
    }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getcwd(to: Text, size: usize) -> Text {
    // SAFETY: the C library's function of this type, with what the caller passed.
    unsafe {
        let next = GETCWD.get::<unsafe extern "C" fn(Text, usize) -> Text>();
        next.map_or(Failure::FAILURE, |next| shorten(next(to, size)))
    }
}

/// As in C, where the compiler knows how large the buffer is.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __getcwd_chk(to: Text, size: usize, room: usize) -> Text {
    // SAFETY: the C library's function of this type, with what the caller passed.
    unsafe {
        let next = GETCWD_CHECKED.get::<unsafe extern "C" fn(Text, usize, usize) -> Text>();
        next.map_or(Failure::FAILURE, |next| shorten(next(to, size, room)))
    }
}

/// As in C.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn get_current_dir_name() -> Text {
    // SAFETY: the C library's function of this type.
    unsafe {
        let next = CURRENT_DIRECTORY.get::<unsafe extern "C" fn() -> Text>();
        next.map_or(Failure::FAILURE, |next| shorten(next()))
    }
}
