//! Errors of the connection manager.

use crate::cq::CqError;
use crate::device::DeviceError;
use crate::qp::BuildError;
use crate::work::PostError;
use std::io;
use urxe_driver::cm::CmError;
use urxe_driver::qp::{ModifyError, MulticastError};
use urxe_driver::route::RouteError;
use urxe_proto::cm::wire::{RejectReason, SidrStatus};

/// A listener, route, connection or service cannot be made, or has failed.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::cm::{Error, RejectReason};
///
/// // No program listens on this port.
/// match urxe::connect_blocking("127.0.0.1:9") {
///     Err(Error::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }) => {}
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection manager rejects an address, a port or a message.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// The host name has no address, or the address is malformed.
    #[error("the address cannot be resolved: {0}")]
    Address(#[source] io::Error),
    /// No file descriptor is left for events.
    #[error(
        "connection events need a file descriptor ({0}): close some files, or raise the limit \
         (`ulimit -n`)"
    )]
    Channel(#[source] io::Error),
    /// Waiting for an event failed.
    #[error("cannot wait for an event: {0}")]
    Wait(#[from] io::Error),
    /// The peer, or its connection manager, rejected the connection.
    #[error("the peer rejected the connection: {reason}{}", meaning(*reason))]
    Rejected {
        /// The reason code of the REJ.
        reason: RejectReason,
        /// Private data of the peer's program; unused bytes at the end are zero.
        private_data: Vec<u8>,
    },
    /// The peer does not respond.
    #[error("the peer does not respond: check that it is up and that UDP port 4791 is not blocked")]
    Unreachable,
    /// The peer, or its connection manager, rejected the request for a datagram service.
    #[error("the datagram service is not available: {status}")]
    NoService {
        /// The status code of the SIDR REP.
        status: SidrStatus,
        /// Private data of the peer's program; unused bytes at the end are zero.
        private_data: Vec<u8>,
    },
    /// The peer disconnected while the connection was being established.
    #[error("the peer disconnected while the connection was being established")]
    Disconnected,
    /// The interface was removed.
    #[error("the device is gone: its interface was removed")]
    DeviceGone,
    /// The queue pair belongs to another device than the route.
    #[error("the queue pair belongs to {given}, but the route needs one of {needed}")]
    OtherDevice {
        /// The device of the queue pair.
        given: String,
        /// The device of the route.
        needed: String,
    },
    /// The queue pair is not reliable, as a connection requires.
    #[error("a connection needs a reliable queue pair: create it with `build`")]
    NotReliable,
    /// The queue pair has another Q_Key than [`QKEY`](super::QKEY).
    #[error("the queue pair has another Q_Key than services and groups: use `cm::QKEY`")]
    OtherQKey,
    /// [`Pending::try_finish`](super::Pending::try_finish) has already returned the result.
    #[error("the attempt to connect has already succeeded or failed")]
    Finished,
    /// No route to the peer or group exists.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The queue pair cannot join the multicast group.
    #[error(transparent)]
    Multicast(#[from] MulticastError),
    /// The queue pair cannot change its state.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The queue pair cannot be created.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A completion queue cannot be created.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// A work request cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Error {
    /// The `errno` that a program that uses librdmacm gets.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let error = urxe::connect_blocking("127.0.0.1:9").unwrap_err();
    /// assert_eq!(error.errno(), libc::ECONNREFUSED);
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Self::Cm(error) => error.errno(),
            Self::Address(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
            Self::Channel(error) => error.raw_os_error().unwrap_or(libc::EMFILE),
            Self::Wait(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Self::Rejected { .. } | Self::NoService { .. } => libc::ECONNREFUSED,
            Self::Unreachable => libc::ETIMEDOUT,
            Self::Disconnected => libc::ECONNRESET,
            Self::DeviceGone => libc::ENODEV,
            Self::OtherDevice { .. } | Self::NotReliable | Self::OtherQKey | Self::Finished => {
                libc::EINVAL
            }
            Self::Route(error) => error.errno(),
            Self::Multicast(error) => error.errno(),
            Self::Modify(error) => error.errno(),
            Self::Device(error) => error.errno(),
            Self::Build(error) => error.errno(),
            Self::Cq(error) => error.errno(),
            Self::Post(error) => error.errno(),
        }
    }
}

/// What the reasons that a program meets mean for it; empty for the others.
fn meaning(reason: RejectReason) -> &'static str {
    match reason {
        RejectReason::INVALID_SERVICE_ID => ": no program listens on this address and port",
        RejectReason::CONSUMER => ": its program refuses it",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_says_that_no_program_listens() {
        let rejected = |reason| Error::Rejected {
            reason,
            private_data: Vec::new(),
        };
        assert_eq!(
            rejected(RejectReason::INVALID_SERVICE_ID).to_string(),
            "the peer rejected the connection: 8 (invalid service ID): no program listens on this \
             address and port"
        );
        assert_eq!(
            rejected(RejectReason::STALE_CONNECTION).to_string(),
            "the peer rejected the connection: 10 (stale connection)"
        );
    }
}
