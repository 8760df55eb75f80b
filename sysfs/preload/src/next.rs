//! The C library's functions, resolved behind the interposed ones.

#[cfg(target_env = "gnu")]
use std::ffi::c_char;
use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, or of another object that was loaded after this one.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// The symbol version that newer versions of glibc provide only for older programs.
#[cfg(target_env = "gnu")]
const OLDEST: &CStr = if cfg!(target_arch = "x86_64") {
    c"GLIBC_2.2.5"
} else if cfg!(target_arch = "aarch64") {
    c"GLIBC_2.17"
} else {
    c"GLIBC_2.27"
};

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

impl Next {
    /// Creates an unresolved function.
    ///
    /// # Panics
    /// At compile time, if `name` does not end with its only NUL.
    pub const fn new(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Next {
                name,
                address: AtomicPtr::new(ptr::null_mut()),
            },
            Err(_) => panic!("a name ends with a zero"),
        }
    }

    /// Resolves the function; null if there is none.
    pub fn find(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is NUL-terminated.
        let current = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = match current.is_null() {
            true => self.find_oldest(),
            false => current,
        };
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// Resolves a function that new programs cannot link.
    #[cfg(target_env = "gnu")]
    fn find_oldest(&self) -> *mut c_void {
        // SAFETY: name and version are NUL-terminated.
        unsafe { dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), OLDEST.as_ptr()) }
    }

    /// Resolves nothing: musl has neither versions of symbols nor `dlvsym`.
    #[cfg(not(target_env = "gnu"))]
    fn find_oldest(&self) -> *mut c_void {
        ptr::null_mut()
    }

    /// Returns the function as a pointer of type `F`. If there is none, sets `errno` to ENOSYS.
    ///
    /// # Safety
    /// `F` must be the function pointer type of this function.
    pub unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = preserve_errno(|| self.find());
        if address.is_null() {
            // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return None;
        }
        // SAFETY: `address` is non-null, `F` has the size of a pointer, and the contract in section
        // Safety says that the function has type `F`.
        Some(unsafe { mem::transmute_copy(&address) })
    }
}

/// Calls a function and restores `errno` afterwards.
pub fn preserve_errno<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: the function has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` is a valid pointer to this thread's errno.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: `errno` is a valid pointer to this thread's errno.
    unsafe { *errno = before };
    result
}

/// The return value of a failed C function.
pub trait Failure {
    /// The value.
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: Self = -1;
}

impl Failure for isize {
    const FAILURE: Self = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: Self = ptr::null_mut();
}
