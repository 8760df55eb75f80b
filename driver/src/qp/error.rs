//! Why queue pairs cannot be made or modified, and the errno that programs get for it.

use super::init::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use crate::route::RouteError;
use std::io;
use urxe_net::OpenError;
use urxe_proto::qp::{QpType, TransitionError};
use urxe_proto::queue::NoMemory;

/// Why a queue pair cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Beyond the device's limits: EINVAL.
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
    /// The queues cannot be had: ENOMEM.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// All numbers are taken: ENOMEM.
    #[error("all queue pair numbers of this process are taken")]
    NoNumber,
    /// The frames of the interface cannot be had: EPERM, or what the system says.
    #[error(
        "{device}: raw packets need the capability CAP_NET_RAW: run as root, or \
         `setcap cap_net_raw+ep` the program ({source})"
    )]
    Frames {
        /// The device.
        device: String,
        /// What the system says.
        source: io::Error,
    },
    /// The network part cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl CreateError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Capacity | Self::Queues(_) => libc::EINVAL,
            Self::NoNumber | Self::NoMemory(_) => libc::ENOMEM,
            Self::Frames { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Open(error) => error.errno(),
        }
    }
}

/// Why a queue pair cannot be modified.
#[derive(Debug, thiserror::Error)]
pub enum ModifyError {
    /// Not this way, or not with these attributes: EINVAL.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The interface is too small for the packets: EINVAL.
    #[error("{device} carries packets of at most {active} bytes, not {asked}: lower the path MTU")]
    PathMtu {
        /// The device.
        device: String,
        /// What it carries.
        active: usize,
        /// What was asked for.
        asked: usize,
    },
    /// Frames go when they are posted: EOPNOTSUPP.
    #[error("the rate of raw packets cannot be limited")]
    Pacing,
    /// There is no way to the peer.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The network part cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl ModifyError {
    /// What verbs programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Transition(_) | Self::PathMtu { .. } => libc::EINVAL,
            Self::Pacing => libc::EOPNOTSUPP,
            Self::Route(error) => error.errno(),
            Self::Open(error) => error.errno(),
        }
    }
}
