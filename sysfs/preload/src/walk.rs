//! Functions that traverse directories inside the C library, where calls cannot be interposed.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{AT_FDCWD, DIR};

use crate::calls;
use crate::next::{Failure, Next};
use crate::path;

static FTW: Next = Next::new("ftw\0");
static FTW64: Next = Next::new("ftw64\0");
static NFTW: Next = Next::new("nftw\0");
static NFTW64: Next = Next::new("nftw64\0");
static GLOB: Next = Next::new("glob\0");
static GLOB64: Next = Next::new("glob64\0");
static READDIR: Next = Next::new("readdir\0");
static CLOSEDIR: Next = Next::new("closedir\0");

/// The C library's functions behind the interposed ones.
pub static NEXT: &[&Next] = &[
    &FTW, &FTW64, &NFTW, &NFTW64, &GLOB, &GLOB64, &READDIR, &CLOSEDIR,
];

/// `struct FTW`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Position {
    /// The offset of the last name in the path.
    base: c_int,
    level: c_int,
}

/// The callback of `ftw`.
pub type Visit = unsafe extern "C" fn(*const c_char, *const c_void, c_int) -> c_int;
/// The callback of `nftw`.
pub type VisitAt =
    unsafe extern "C" fn(*const c_char, *const c_void, c_int, *mut Position) -> c_int;

thread_local! {
    /// The program's callback of the innermost traversal in this thread. The C callbacks have no
    /// user data argument.
    static VISIT: Cell<Option<Visit>> = const { Cell::new(None) };
    static VISIT_AT: Cell<Option<VisitAt>> = const { Cell::new(None) };
}

/// Returns the path without the root of the view, and the length of the removed root.
///
/// # Safety
/// `path` must be a C string.
unsafe fn shown(path: *const c_char) -> (*const c_char, usize) {
    // SAFETY: `path` is a C string by the contract in section Safety, and `hidden` is at most its
    // length.
    unsafe {
        let hidden = path::hidden(CStr::from_ptr(path).to_bytes());
        (path.add(hidden), hidden)
    }
}

unsafe extern "C" fn visit(path: *const c_char, stat: *const c_void, kind: c_int) -> c_int {
    // SAFETY: the C library calls this with the arguments of the program's callback.
    unsafe {
        let (path, _) = shown(path);
        VISIT.get().map_or(0, |function| function(path, stat, kind))
    }
}

unsafe extern "C" fn visit_at(
    path: *const c_char,
    stat: *const c_void,
    kind: c_int,
    position: *mut Position,
) -> c_int {
    // SAFETY: the C library calls this with the arguments of the program's callback. The removed
    // length is at most that of a path, so it fits into `c_int`.
    unsafe {
        let (path, hidden) = shown(path);
        let mut here = *position;
        here.base -= hidden as c_int;
        VISIT_AT
            .get()
            .map_or(0, |function| function(path, stat, kind, &raw mut here))
    }
}

/// Traverses with the program's callback, which gets paths without the root.
unsafe fn walk(next: &Next, root: *const c_char, function: Option<Visit>, files: c_int) -> c_int {
    type Walk = unsafe extern "C" fn(*const c_char, Option<Visit>, c_int) -> c_int;
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract.
    unsafe {
        let Some(next) = next.get::<Walk>() else {
            return Failure::FAILURE;
        };
        path::with(AT_FDCWD, root, |path| {
            if path == root {
                return next(path, function, files);
            }
            let outer = VISIT.replace(function);
            let result = next(path, Some(visit), files);
            VISIT.set(outer);
            result
        })
    }
}

/// Like [`walk`], with positions.
unsafe fn walk_at(
    next: &Next,
    root: *const c_char,
    function: Option<VisitAt>,
    files: c_int,
    flags: c_int,
) -> c_int {
    type Walk = unsafe extern "C" fn(*const c_char, Option<VisitAt>, c_int, c_int) -> c_int;
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract.
    unsafe {
        let Some(next) = next.get::<Walk>() else {
            return Failure::FAILURE;
        };
        path::with(AT_FDCWD, root, |path| {
            if path == root {
                return next(path, function, files, flags);
            }
            let outer = VISIT_AT.replace(function);
            let result = next(path, Some(visit_at), files, flags);
            VISIT_AT.set(outer);
            result
        })
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ftw(root: *const c_char, function: Option<Visit>, files: c_int) -> c_int {
    // SAFETY: the arguments are the caller's under the contract of the C function.
    unsafe { walk(&FTW, root, function, files) }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ftw64(
    root: *const c_char,
    function: Option<Visit>,
    files: c_int,
) -> c_int {
    // SAFETY: the arguments are the caller's under the contract of the C function.
    unsafe { walk(&FTW64, root, function, files) }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nftw(
    root: *const c_char,
    function: Option<VisitAt>,
    files: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are the caller's under the contract of the C function.
    unsafe { walk_at(&NFTW, root, function, files, flags) }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nftw64(
    root: *const c_char,
    function: Option<VisitAt>,
    files: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are the caller's under the contract of the C function.
    unsafe { walk_at(&NFTW64, root, function, files, flags) }
}

/// `glob_t`. On the architectures in lib.rs `glob64_t` is the same.
#[repr(C)]
pub struct Matches {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close_directory: *const c_void,
    read_directory: *const c_void,
    open_directory: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

/// `GLOB_ALTDIRFUNC`: the structure contains the directory functions.
const OWN_FUNCTIONS: c_int = 1 << 9;

/// Matches with the directory functions of this object, unless the program provides its own.
unsafe fn find_matches(
    next: &Next,
    pattern: *const c_char,
    flags: c_int,
    on_error: *const c_void,
    matches: *mut Matches,
) -> c_int {
    type Glob = unsafe extern "C" fn(*const c_char, c_int, *const c_void, *mut Matches) -> c_int;
    /// `GLOB_ABORTED`.
    const ABORTED: c_int = 2;
    // SAFETY: the C library's function has this type, and the arguments are the caller's under the
    // same contract. Without `GLOB_ALTDIRFUNC` the caller does not use the directory functions, so
    // they can be set here.
    unsafe {
        let Some(next) = next.get::<Glob>() else {
            return ABORTED;
        };
        if flags & OWN_FUNCTIONS != 0 || crate::root::root().is_none() {
            return next(pattern, flags, on_error, matches);
        }
        let opendir: unsafe extern "C" fn(*const c_char) -> *mut DIR = calls::opendir;
        (*matches).close_directory = CLOSEDIR.find();
        (*matches).read_directory = READDIR.find();
        (*matches).open_directory = opendir as *const c_void;
        (*matches).lstat = calls::lstat as *const c_void;
        (*matches).stat = calls::stat as *const c_void;
        let result = next(pattern, flags | OWN_FUNCTIONS, on_error, matches);
        (*matches).flags &= !OWN_FUNCTIONS;
        result
    }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn glob(
    pattern: *const c_char,
    flags: c_int,
    on_error: *const c_void,
    matches: *mut Matches,
) -> c_int {
    // SAFETY: the arguments are the caller's under the contract of the C function.
    unsafe { find_matches(&GLOB, pattern, flags, on_error, matches) }
}

/// Interposes the C function of this name.
///
/// # Safety
/// The contract of the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn glob64(
    pattern: *const c_char,
    flags: c_int,
    on_error: *const c_void,
    matches: *mut Matches,
) -> c_int {
    // SAFETY: the arguments are the caller's under the contract of the C function.
    unsafe { find_matches(&GLOB64, pattern, flags, on_error, matches) }
}
