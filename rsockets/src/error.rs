//! The error type of the package.

use rustix::io::Errno;
use std::io;
use urxe_driver::cm::CmError;
use urxe_driver::cm::port_space::PortError;
use urxe_driver::cm::resolve::ResolveError;
use urxe_driver::cq::CqError;
use urxe_driver::owned::{OwnedError, RangeError};
use urxe_driver::qp::{CreateError, ModifyError};
use urxe_driver::route::RouteError;
use urxe_proto::queue::PostError;
use urxe_proto::rsocket::stream::StreamError;
use urxe_proto::rsocket::wire::WireError;

/// An error of a socket call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An errno that the corresponding system call defines.
    #[error(transparent)]
    Plain(#[from] Errno),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The connection manager failed.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// An address cannot be resolved.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A completion queue cannot be created.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// Memory cannot be allocated or registered.
    #[error(transparent)]
    Memory(#[from] OwnedError),
    /// A queue pair cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A queue pair cannot be modified.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// There is no route to the peer.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The peer is not a compatible rsocket.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer violated the stream protocol.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A work request cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A piece is not inside its buffer, which is a bug in this package.
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl Error {
    /// Returns the errno for programs.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Plain(errno) => errno.raw_os_error(),
            Self::System(error) => error.raw_os_error().unwrap_or(match error.kind() {
                io::ErrorKind::WouldBlock => libc::EAGAIN,
                io::ErrorKind::Interrupted => libc::EINTR,
                _ => libc::EIO,
            }),
            // A socket reports a port in use as bind(2) does, for whichever address.
            Self::Cm(CmError::Port(PortError::NotAvailable { .. })) => libc::EADDRINUSE,
            Self::Cm(error) => error.errno(),
            Self::Resolve(error) => error.errno(),
            Self::Cq(error) => error.errno(),
            Self::Memory(error) => error.errno(),
            Self::Create(error) => error.errno(),
            Self::Modify(error) => error.errno(),
            Self::Route(error) => error.errno(),
            Self::Wire(_) => libc::ENOTSUP,
            Self::Post(PostError::Full) => libc::ENOMEM,
            Self::Stream(_) | Self::Post(_) | Self::Range(_) => libc::EIO,
        }
    }
}
