//! The C library's own functions, behind the ones here that have their names.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, or of what else was loaded after this object.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// The version of names that newer C libraries have for older programs only.
const OLDEST: &CStr = if cfg!(target_arch = "x86_64") {
    c"GLIBC_2.2.5"
} else if cfg!(target_arch = "aarch64") {
    c"GLIBC_2.17"
} else {
    c"GLIBC_2.27"
};

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

impl Next {
    /// The one of this name, to be looked for later.
    ///
    /// # Panics
    /// While compiling, when `name` does not end with the only zero in it.
    pub const fn new(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Next {
                name,
                address: AtomicPtr::new(ptr::null_mut()),
            },
            Err(_) => panic!("a name ends with a zero"),
        }
    }

    /// Its address, or null where there is none.
    pub fn find(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: names and versions are C strings.
        let found = unsafe {
            let found = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            match found.is_null() {
                true => dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), OLDEST.as_ptr()),
                false => found,
            }
        };
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// The function, as what it is. Where there is none, `errno` is set to ENOSYS.
    ///
    /// # Safety
    /// `F` is the type of a pointer to a function, and this one can be called so.
    pub unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = keep_errno(|| self.find());
        if address.is_null() {
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return None;
        }
        // SAFETY: pointers of the same size; the caller answers for the type.
        Some(unsafe { mem::transmute_copy(&address) })
    }
}

/// Does something that the caller is not to see in `errno`.
pub fn keep_errno<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: errno is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// What a function returns when it has failed.
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
