//! The built shared object.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;

use libc::{c_char, c_void};

/// Returns the path of this build's `liburxe.so`.
pub fn path() -> PathBuf {
    urxe_tests::built("liburxe.so")
}

/// Returns a directory with links to the library under both of its names.
pub fn under_both_names() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("both_names");
    fs::create_dir_all(&directory).expect("the target directory takes directories");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let link = directory.join(name);
        // Tests run concurrently: the second one finds a valid link.
        if fs::read_link(&link).ok() != Some(path()) {
            let fresh = directory.join(format!("{name}.{:?}", thread::current().id()));
            // A run that was killed may have left the link.
            let _ = fs::remove_file(&fresh);
            symlink(path(), &fresh).expect("the directory takes links");
            fs::rename(&fresh, &link).expect("a link can be renamed");
        }
    }
    directory
}

/// A loaded library. Libraries with the same symbols may be loaded at the same time.
pub struct Library(*mut c_void);

impl Library {
    /// Loads the library and resolves all of its symbols (`RTLD_NOW`).
    pub fn load(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path has no NUL");
        // SAFETY: the name is a C string; both libraries may be loaded at any time.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failure dlerror returns a C string.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            panic!("{}: {}", path.display(), why.to_string_lossy());
        }
        Self(handle)
    }

    /// Returns the address of a symbol with a version.
    pub fn symbol_at(&self, name: &str, version: &str) -> Option<*mut c_void> {
        let name = CString::new(name).expect("a symbol has no NUL");
        let version = CString::new(version).expect("a version has no NUL");
        // SAFETY: the handle is never closed, and both pointers are to C strings.
        let address = unsafe { dlvsym(self.0, name.as_ptr(), version.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// Returns the default version of a function.
    ///
    /// # Safety
    /// `F` must be a function pointer with the type of this function.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        let symbol = CString::new(name).expect("a symbol has no NUL");
        // SAFETY: the handle is never closed, and `symbol` is a C string.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "{name} is missing");
        // SAFETY: `address` is non-null, and `F` has the size of a pointer and the type of this
        // function: the caller's contract, section Safety.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}
