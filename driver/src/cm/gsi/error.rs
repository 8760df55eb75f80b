//! What goes wrong with queue pair 1.

use std::io;
use urxe_net::OpenError;
use urxe_proto::cm::wire::ServiceId;
use urxe_proto::cm::{CallError, ListenError, NoCommId};

/// Why something cannot be asked of a peer, or listened for.
#[derive(Debug, thiserror::Error)]
pub enum GsiError {
    /// Another process listens there: EADDRINUSE.
    #[error("{0:?} has a listener in another process: end it, or listen elsewhere")]
    InUse(ServiceId),
    /// This process listens there: EADDRINUSE.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The connection is not in a state for this: EINVAL.
    #[error(transparent)]
    Call(#[from] CallError),
    /// There is no identifier: ENOMEM.
    #[error(transparent)]
    NoCommId(#[from] NoCommId),
    /// The socket cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system cannot give a name.
    #[error("a listener could not be made known to other processes: {0}")]
    System(#[from] io::Error),
}

impl GsiError {
    /// What programs get.
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
