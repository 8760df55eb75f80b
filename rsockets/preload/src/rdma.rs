//! librdmacm's functions, resolved at run time.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{sockaddr, socklen_t};

/// A function of librdmacm.
pub struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// The handle of librdmacm; null if it cannot be loaded.
struct Library(*mut c_void);

// SAFETY: the value is only passed to dlsym(3), which any thread may call with the handle.
unsafe impl Send for Library {}
// SAFETY: the value is only passed to dlsym(3), which several threads may call at the same time.
unsafe impl Sync for Library {}

fn library() -> *mut c_void {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: the name is NUL-terminated.
    let open = || unsafe {
        Library(libc::dlopen(
            c"librdmacm.so.1".as_ptr(),
            libc::RTLD_NOW | libc::RTLD_GLOBAL,
        ))
    };
    LIBRARY.get_or_init(open).0
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Function {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the function as a pointer of type `F`. If there is none, sets `errno` to ENOSYS.
    ///
    /// # Safety
    /// `F` must be the function pointer type of this function.
    pub unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = inside(|| match library() {
                // A null handle would search the default scope and find the C library's functions.
                none if none.is_null() => none,
                // SAFETY: `library` is a non-null handle from dlopen(3) that is never closed. The
                // name is NUL-terminated.
                library => unsafe { libc::dlsym(library, self.name.as_ptr()) },
            });
            self.address.store(address, Ordering::Relaxed);
        }
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

macro_rules! functions {
    ($($constant:ident $name:literal)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            pub static $constant: Function = Function::new($name);
        )*
    };
}

functions! {
    RSOCKET c"rsocket"
    RBIND c"rbind"
    RLISTEN c"rlisten"
    RACCEPT c"raccept"
    RCONNECT c"rconnect"
    RSHUTDOWN c"rshutdown"
    RCLOSE c"rclose"
    RRECV c"rrecv"
    RRECVFROM c"rrecvfrom"
    RRECVMSG c"rrecvmsg"
    RREAD c"rread"
    RREADV c"rreadv"
    RSEND c"rsend"
    RSENDTO c"rsendto"
    RSENDMSG c"rsendmsg"
    RWRITE c"rwrite"
    RWRITEV c"rwritev"
    RPOLL c"rpoll"
    RGETPEERNAME c"rgetpeername"
    RGETSOCKNAME c"rgetsockname"
    RSETSOCKOPT c"rsetsockopt"
    RGETSOCKOPT c"rgetsockopt"
    RFCNTL c"rfcntl"
    REPOLL_CREATE c"repoll_create"
    REPOLL_CTL c"repoll_ctl"
    REPOLL_WAIT c"repoll_wait"
}

/// Connects an rsocket.
///
/// # Safety
/// The contract of the C function.
pub unsafe fn connect(rsocket: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    // SAFETY: `rconnect` has this type, and the arguments are the caller's under the same contract.
    unsafe {
        match RCONNECT.get::<Connect>() {
            Some(function) => inside(|| function(rsocket, address, len)),
            None => -1,
        }
    }
}

/// Closes an rsocket that is not used any more.
pub fn close(rsocket: c_int) {
    // SAFETY: `rclose` has this type, and accepts any number.
    unsafe {
        if let Some(function) = RCLOSE.get::<unsafe extern "C" fn(c_int) -> c_int>() {
            inside(|| function(rsocket));
        }
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls into librdmacm. During the call, sockets that this thread creates are kernel sockets.
pub fn inside<R>(call: impl FnOnce() -> R) -> R {
    let before = INSIDE.replace(true);
    let result = call();
    INSIDE.set(before);
    result
}

/// The names of the threads that urxe starts. Whole names, because programs may be called
/// `urxe-...` as well, and the threads of a program have its name until they set their own.
const OWN_THREADS: &[&[u8]] = &[
    b"urxe-closer",
    b"urxe-exit",
    b"urxe-failing",
    b"urxe-progress",
    b"urxe-rsockets",
    b"urxe-watcher",
];

/// Returns whether this thread runs inside librdmacm: in a call, or as one of urxe's own threads,
/// which are recognized by their names.
pub fn is_inside() -> bool {
    if INSIDE.get() {
        return true;
    }
    let mut name = [0_u8; 16];
    // SAFETY: the buffer has 16 bytes, the size of a thread's name with its NUL.
    let result = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    result == 0 && OWN_THREADS.contains(&name)
}

/// The level of librdmacm's socket options.
pub const SOL_RDMA: c_int = 0x10000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// Adds the names of the threads that the sources in a directory start.
    fn add_names(directory: &Path, names: &mut BTreeSet<Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_names(&path, names);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let starts = text.split("thread::spawn(\"").skip(1);
            names.extend(starts.map(|rest| rest.split('"').next().unwrap().into()));
        }
    }

    #[test]
    fn all_of_urxes_threads_are_known() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut names = BTreeSet::new();
        for package in ["net", "driver", "rsockets"] {
            add_names(&workspace.join(package).join("src"), &mut names);
        }
        let known = OWN_THREADS.iter().map(|name| name.to_vec()).collect();
        assert_eq!(names, known);
        // The kernel keeps 15 bytes of a name.
        assert!(OWN_THREADS.iter().all(|name| name.len() <= 15));
    }
}
