//! Why a call fails.

use rustix::io::Errno;
use std::io;
use urxe_driver::cm::CmError;
use urxe_driver::cm::resolve::ResolveError;
use urxe_driver::cq::CqError;
use urxe_driver::owned::{OwnedError, RangeError};
use urxe_driver::qp::{CreateError, ModifyError};
use urxe_driver::route::RouteError;
use urxe_proto::queue::PostError;
use urxe_proto::rsocket::stream::StreamError;
use urxe_proto::rsocket::wire::WireError;

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the C library's call of this kind says: a plain reason.
    #[error(transparent)]
    Plain(#[from] Errno),
    /// A call of the system failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The connection manager refuses.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// An address leads nowhere.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// No completion queue.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] OwnedError),
    /// No queue pair.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The queue pair cannot be made ready.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// No way to a peer.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The peer is no rsocket that this one understands.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer broke the protocol.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A work request cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A piece of a buffer does not lie in it, which would be a mistake here.
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl Error {
    /// What programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Plain(errno) => errno.raw_os_error(),
            Self::System(error) => error.raw_os_error().unwrap_or(match error.kind() {
                io::ErrorKind::WouldBlock => libc::EAGAIN,
                io::ErrorKind::Interrupted => libc::EINTR,
                _ => libc::EIO,
            }),
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
