//! librdmacm's sockets: `rsocket.h`. The sockets are `urxe_rsockets`'s; here is what C knows of them.

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
    /// Most of these a program meets as a matter of course, so it is not warned.
    fn from(error: sockets::error::Error) -> Self {
        tracing::debug!("rsocket: {error}");
        Self(error.errno())
    }
}

/// The socket of a number.
///
/// # Errors
/// `EBADF` if there is none.
fn socket_of(number: c_int) -> Result<Socket, Errno> {
    sockets::find(number).ok_or(Errno(libc::EBADF))
}

/// The stream of a number.
///
/// # Errors
/// `EBADF` if there is none; `EINVAL` if it is one of datagrams.
fn stream_of(number: c_int) -> Result<Arc<StreamSocket>, Errno> {
    match socket_of(number)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => Err(Errno(libc::EINVAL)),
    }
}
