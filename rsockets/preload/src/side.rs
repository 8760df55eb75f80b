//! The two implementations of a socket, librdmacm's and the kernel's, with the transfer of options
//! from one to the other.

use std::ffi::{c_int, c_void};
use std::mem;

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::descriptor::rfcntl;
use crate::rdma;

/// The implementation of a socket.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// librdmacm.
    Rdma,
    /// The kernel.
    Kernel,
}

type GetName = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
type GetOption = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
type SetOption = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;

/// A socket address with its length.
pub type Name = (sockaddr_storage, socklen_t);

impl Side {
    /// Returns the socket's local address.
    pub fn own_name(self, socket: c_int) -> Option<Name> {
        match self {
            Side::Rdma => name(socket, |socket, to, len| {
                // SAFETY: `rgetsockname` has this type, and [`name`] passes a buffer with its
                // length.
                unsafe {
                    let function = rdma::RGETSOCKNAME.get::<GetName>()?;
                    Some(rdma::inside(|| function(socket, to, len)))
                }
            }),
            Side::Kernel => name(socket, |socket, to, len| {
                // SAFETY: [`name`] passes a buffer with its length.
                Some(unsafe { libc::getsockname(socket, to, len) })
            }),
        }
    }

    /// Sets an integer option and ignores failure.
    pub fn set(self, socket: c_int, level: c_int, option: c_int, value: c_int) {
        let to = (&raw const value).cast::<c_void>();
        let len = size_of::<c_int>() as socklen_t;
        // SAFETY: the function has this type, and the value has the length that is passed.
        unsafe {
            match self {
                Side::Rdma => {
                    if let Some(function) = rdma::RSETSOCKOPT.get::<SetOption>() {
                        rdma::inside(|| function(socket, level, option, to, len));
                    }
                }
                Side::Kernel => {
                    libc::setsockopt(socket, level, option, to, len);
                }
            }
        }
    }

    /// Returns the value of an integer option.
    fn get(self, socket: c_int, level: c_int, option: c_int) -> Option<c_int> {
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as socklen_t;
        let (to, room) = ((&raw mut value).cast::<c_void>(), &raw mut len);
        // SAFETY: the function has this type, and the buffer has the length that is passed.
        let got = unsafe {
            match self {
                Side::Rdma => {
                    let function = rdma::RGETSOCKOPT.get::<GetOption>()?;
                    rdma::inside(|| function(socket, level, option, to, room))
                }
                Side::Kernel => libc::getsockopt(socket, level, option, to, room),
            }
        };
        (got == 0).then_some(value)
    }

    fn flags(self, socket: c_int) -> c_int {
        match self {
            Side::Rdma => rfcntl(socket, libc::F_GETFL, 0),
            // SAFETY: F_GETFL takes no argument.
            Side::Kernel => unsafe { libc::fcntl(socket, libc::F_GETFL) },
        }
    }

    fn set_flags(self, socket: c_int, flags: c_int) {
        match self {
            Side::Rdma => rfcntl(socket, libc::F_SETFL, flags.into()),
            // SAFETY: F_SETFL takes an integer.
            Side::Kernel => unsafe { libc::fcntl(socket, libc::F_SETFL, flags) },
        };
    }
}

/// Returns the address that a function writes.
pub fn name(
    socket: c_int,
    get: impl FnOnce(c_int, *mut sockaddr, *mut socklen_t) -> Option<c_int>,
) -> Option<Name> {
    // SAFETY: all zeros are a valid `sockaddr_storage`.
    let mut name: sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let got = get(socket, (&raw mut name).cast(), &raw mut len)?;
    (got == 0).then_some((name, len))
}

/// Copies commonly used options from one socket to another.
pub fn copy((side, from): (Side, c_int), (other, to): (Side, c_int)) {
    for (level, option) in [
        (libc::SOL_SOCKET, libc::SO_REUSEADDR),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    ] {
        if let Some(value) = side.get(from, level, option)
            && value != 0
        {
            other.set(to, level, option, value);
        }
    }
    let flags = side.flags(from).max(0) & libc::O_NONBLOCK;
    other.set_flags(to, flags);
}
