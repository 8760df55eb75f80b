//! The functions of `rsocket.h`; `urxe_rsockets` implements the sockets.

mod data;
pub(super) mod epoll;
pub(super) mod name;
pub(super) mod option;
pub(super) mod poll;
pub(super) mod socket;
pub(super) mod transfer;

use std::ffi::c_int;

use crate::errno::Errno;
use std::sync::Arc;
use urxe_rsockets::{self as sockets, Socket, StreamSocket};

impl From<sockets::error::Error> for Errno {
    /// Logged at debug level: most of these errors are part of normal operation.
    fn from(error: sockets::error::Error) -> Self {
        tracing::debug!("rsocket: {error}");
        Self(error.errno())
    }
}

/// Returns the socket with this number.
///
/// # Errors
/// `EBADF` if there is none.
fn socket_of(number: c_int) -> Result<Socket, Errno> {
    sockets::find(number).ok_or(Errno(libc::EBADF))
}

/// Returns the stream socket with this number.
///
/// # Errors
/// `EBADF` if there is none; `EINVAL` for a datagram socket.
fn stream_of(number: c_int) -> Result<Arc<StreamSocket>, Errno> {
    match socket_of(number)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => Err(Errno(libc::EINVAL)),
    }
}
