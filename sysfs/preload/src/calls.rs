//! Functions that only take a path.
//!
//! Pointers other than the path are passed on, so their types do not matter here.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{AT_FDCWD, DIR, FILE, mode_t};

use crate::next::{Failure, Next};
use crate::path;

type Path = *const c_char;
type Pointer = *mut c_void;

/// Defines interposed functions that call the C library's with another path: the argument `path`,
/// relative to the directory `from`.
macro_rules! redirect {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $path:ident from $directory:expr;)*) => {
        /// The C library's functions behind the interposed ones.
        pub static NEXT: &[&Next] = &[$(&$name::NEXT),*];
        $(
            mod $name {
                use crate::next::Next;
                pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0"));
            }

            /// Interposes the C function of this name.
            ///
            /// # Safety
            /// The contract of the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the C library's function of this name takes these arguments, and they are
                // the caller's under the same contract. For `open` and its variants `mode` is
                // variadic. The calling conventions of the architectures in lib.rs pass an integer
                // in the same register either way, so `mode` is what the caller passed. If it
                // passed none, the C library does not read the register.
                unsafe {
                    let Some(next) = $name::NEXT.get::<unsafe extern "C" fn($($type),*) -> $result>() else {
                        return Failure::FAILURE;
                    };
                    path::with($directory, $path, |$path| next($($argument),*))
                }
            }
        )*
    };
}

redirect! {
    fn open(path: Path, flags: c_int, mode: mode_t) -> c_int, path from AT_FDCWD;
    fn open64(path: Path, flags: c_int, mode: mode_t) -> c_int, path from AT_FDCWD;
    fn __open(path: Path, flags: c_int, mode: mode_t) -> c_int, path from AT_FDCWD;
    fn __open64(path: Path, flags: c_int, mode: mode_t) -> c_int, path from AT_FDCWD;
    fn __open_2(path: Path, flags: c_int) -> c_int, path from AT_FDCWD;
    fn __open64_2(path: Path, flags: c_int) -> c_int, path from AT_FDCWD;
    fn openat(directory: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int, path from directory;
    fn openat64(directory: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int, path from directory;
    fn __openat_2(directory: c_int, path: Path, flags: c_int) -> c_int, path from directory;
    fn __openat64_2(directory: c_int, path: Path, flags: c_int) -> c_int, path from directory;
    fn creat(path: Path, mode: mode_t) -> c_int, path from AT_FDCWD;
    fn creat64(path: Path, mode: mode_t) -> c_int, path from AT_FDCWD;
    fn fopen(path: Path, mode: Path) -> *mut FILE, path from AT_FDCWD;
    fn fopen64(path: Path, mode: Path) -> *mut FILE, path from AT_FDCWD;
    fn freopen(path: Path, mode: Path, stream: *mut FILE) -> *mut FILE, path from AT_FDCWD;
    fn freopen64(path: Path, mode: Path, stream: *mut FILE) -> *mut FILE, path from AT_FDCWD;

    fn opendir(path: Path) -> *mut DIR, path from AT_FDCWD;
    fn scandir(path: Path, list: Pointer, filter: Pointer, order: Pointer) -> c_int, path from AT_FDCWD;
    fn scandir64(path: Path, list: Pointer, filter: Pointer, order: Pointer) -> c_int, path from AT_FDCWD;
    fn scandirat(directory: c_int, path: Path, list: Pointer, filter: Pointer, order: Pointer) -> c_int, path from directory;
    fn scandirat64(directory: c_int, path: Path, list: Pointer, filter: Pointer, order: Pointer) -> c_int, path from directory;
    fn chdir(path: Path) -> c_int, path from AT_FDCWD;

    fn stat(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn stat64(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn lstat(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn lstat64(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn fstatat(directory: c_int, path: Path, to: Pointer, flags: c_int) -> c_int, path from directory;
    fn fstatat64(directory: c_int, path: Path, to: Pointer, flags: c_int) -> c_int, path from directory;
    fn statx(directory: c_int, path: Path, flags: c_int, mask: c_uint, to: Pointer) -> c_int, path from directory;
    fn __xstat(version: c_int, path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn __xstat64(version: c_int, path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn __lxstat(version: c_int, path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn __lxstat64(version: c_int, path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn __fxstatat(version: c_int, directory: c_int, path: Path, to: Pointer, flags: c_int) -> c_int, path from directory;
    fn __fxstatat64(version: c_int, directory: c_int, path: Path, to: Pointer, flags: c_int) -> c_int, path from directory;
    fn statfs(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn statfs64(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn statvfs(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;
    fn statvfs64(path: Path, to: Pointer) -> c_int, path from AT_FDCWD;

    fn access(path: Path, mode: c_int) -> c_int, path from AT_FDCWD;
    fn faccessat(directory: c_int, path: Path, mode: c_int, flags: c_int) -> c_int, path from directory;
    fn euidaccess(path: Path, mode: c_int) -> c_int, path from AT_FDCWD;
    fn eaccess(path: Path, mode: c_int) -> c_int, path from AT_FDCWD;
    fn getxattr(path: Path, name: Path, to: Pointer, size: usize) -> isize, path from AT_FDCWD;
    fn lgetxattr(path: Path, name: Path, to: Pointer, size: usize) -> isize, path from AT_FDCWD;
    fn listxattr(path: Path, to: Pointer, size: usize) -> isize, path from AT_FDCWD;
    fn llistxattr(path: Path, to: Pointer, size: usize) -> isize, path from AT_FDCWD;
    fn pathconf(path: Path, name: c_int) -> isize, path from AT_FDCWD;

    fn readlink(path: Path, to: Pointer, size: usize) -> isize, path from AT_FDCWD;
    fn __readlink_chk(path: Path, to: Pointer, size: usize, room: usize) -> isize, path from AT_FDCWD;
    fn readlinkat(directory: c_int, path: Path, to: Pointer, size: usize) -> isize, path from directory;
    fn __readlinkat_chk(directory: c_int, path: Path, to: Pointer, size: usize, room: usize) -> isize, path from directory;

    fn inotify_add_watch(watches: c_int, path: Path, mask: u32) -> c_int, path from AT_FDCWD;
}
