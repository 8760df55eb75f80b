//! Sockets by their numbers, and the errors of sockets.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_rsockets::{self as sockets, Socket, StreamSocket};

use crate::errno::Errno;

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
pub(super) fn socket_of(number: c_int) -> Result<Socket, Errno> {
    sockets::find(number).ok_or(Errno(libc::EBADF))
}

/// Returns the stream socket with this number.
///
/// # Errors
/// `EBADF` if there is none; `EINVAL` for a datagram socket.
pub(super) fn stream_of(number: c_int) -> Result<Arc<StreamSocket>, Errno> {
    match socket_of(number)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => Err(Errno(libc::EINVAL)),
    }
}
