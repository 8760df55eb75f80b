//! Errors of queue pair 1.

use std::io;
use urxe_net::OpenError;
use urxe_proto::cm::wire::ServiceId;
use urxe_proto::cm::{CallError, ListenError, NoCommId};

/// Errors of sending a request, and of listening.
#[derive(Debug, thiserror::Error)]
pub enum GsiError {
    /// Another process listens for the service: EADDRINUSE.
    #[error("{0:?} has a listener in another process: end it, or listen elsewhere")]
    InUse(ServiceId),
    /// This process listens for the service: EADDRINUSE.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The state of the connection does not permit the call: EINVAL.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No communication ID is free: ENOMEM.
    #[error(transparent)]
    NoCommId(#[from] NoCommId),
    /// The socket cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The kernel cannot give a name to the listener.
    #[error("a listener could not be made known to other processes: {0}")]
    System(#[from] io::Error),
}

impl GsiError {
    /// Returns the error number that applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::InUse(_) | Self::Listen(_) => libc::EADDRINUSE,
            Self::Call(_) => libc::EINVAL,
            Self::NoCommId(_) => libc::ENOMEM,
            Self::Open(error) => error.errno(),
            Self::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
