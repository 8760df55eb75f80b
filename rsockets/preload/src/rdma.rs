//! librdmacm's functions.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{sockaddr, socklen_t};

/// A function of librdmacm's.
pub struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// What it has; loaded when it is first needed.
struct Library(*mut c_void);

// SAFETY: a handle of the dynamic linker's is for all threads.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

fn library() -> *mut c_void {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: a C string.
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

    /// The function, as what it is. Where there is none, `errno` is set to ENOSYS.
    ///
    /// # Safety
    /// `F` is the type of a pointer to a function, and this one can be called so.
    pub unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = inside(|| match library() {
                // Searching with a null handle would find the C library's names.
                none if none.is_null() => none,
                // SAFETY: a handle and a C string.
                library => unsafe { libc::dlsym(library, self.name.as_ptr()) },
            });
            self.address.store(address, Ordering::Relaxed);
        }
        if address.is_null() {
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return None;
        }
        // SAFETY: pointers of the same size; the caller answers for the type.
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
/// As in C.
pub unsafe fn connect(rsocket: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    // SAFETY: the function's type, and the caller's promise.
    unsafe {
        match RCONNECT.get::<Connect>() {
            Some(function) => inside(|| function(rsocket, address, len)),
            None => -1,
        }
    }
}

/// Closes an rsocket that nobody uses any more.
pub fn close(rsocket: c_int) {
    // SAFETY: the function's type.
    unsafe {
        if let Some(function) = RCLOSE.get::<unsafe extern "C" fn(c_int) -> c_int>() {
            inside(|| function(rsocket));
        }
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls into librdmacm: sockets that it makes meanwhile are the kernel's.
pub fn inside<R>(call: impl FnOnce() -> R) -> R {
    let before = INSIDE.replace(true);
    let result = call();
    INSIDE.set(before);
    result
}

/// Whether this thread is inside librdmacm: by a call, or as one of its own threads, whose names urxe begins
/// with its own.
pub fn is_inside() -> bool {
    if INSIDE.get() {
        return true;
    }
    let mut name = [0 as c_char; 16];
    // SAFETY: a thread's name has at most 16 bytes with its zero.
    let told = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let ours = b"urxe-".iter().zip(&name);
    told == 0
        && ours
            .clone()
            .all(|(ours, byte)| *ours == byte.to_ne_bytes()[0])
}

/// The options of sockets that are librdmacm's own.
pub const SOL_RDMA: c_int = 0x10000;
