//! Errors of the creation and modification of queue pairs, and their errno.

use crate::ports::route::RouteError;
use crate::queues::limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use std::io;
use urxe_net::OpenError;
use urxe_proto::qp::{QpType, TransitionError};
use urxe_proto::queue::NoMemory;

/// An error in the creation of a queue pair.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The capacities exceed the device's limits: EINVAL.
    #[error(
        "a queue has at most {MAX_QP_WR} work requests of {MAX_SGE} elements, and {MAX_INLINE} \
         bytes of inline data"
    )]
    Capacity,
    /// The service needs other queues: EINVAL.
    #[error(
        "a {0:?} queue pair has not these queues: XRC initiators have a send queue only, targets \
         an XRC domain only, and all others a completion queue for sends and one for receives"
    )]
    Queues(QpType),
    /// The queues cannot be allocated: ENOMEM.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// All queue pair numbers are in use: ENOMEM.
    #[error("all queue pair numbers of this process are taken")]
    NoNumber,
    /// The packet socket cannot be opened: EPERM, or the system's error.
    #[error(
        "{device}: raw packets need the capability CAP_NET_RAW: run as root, or \
         `setcap cap_net_raw+ep` the program ({source})"
    )]
    Frames {
        /// The device.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// The device's sockets cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl CreateError {
    /// The errno that verbs return.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Capacity | Self::Queues(_) => libc::EINVAL,
            Self::NoNumber | Self::NoMemory(_) => libc::ENOMEM,
            Self::Frames { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Open(error) => error.errno(),
        }
    }
}

/// An error in the modification of a queue pair.
#[derive(Debug, thiserror::Error)]
pub enum ModifyError {
    /// The transition or the attributes are not allowed: EINVAL.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The path MTU exceeds the interface's MTU: EINVAL.
    #[error(
        "{device} carries packets of at most {active} bytes, not {requested}: lower the path MTU"
    )]
    PathMtu {
        /// The device.
        device: String,
        /// The active MTU in bytes.
        active: usize,
        /// The requested MTU in bytes.
        requested: usize,
    },
    /// Raw packets are sent when they are posted, so they have no rate limit: EOPNOTSUPP.
    #[error("the rate of raw packets cannot be limited")]
    Pacing,
    /// The address vector leads to no route.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The device's sockets cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl ModifyError {
    /// The errno that verbs return.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Transition(_) | Self::PathMtu { .. } => libc::EINVAL,
            Self::Pacing => libc::EOPNOTSUPP,
            Self::Route(error) => error.errno(),
            Self::Open(error) => error.errno(),
        }
    }
}
