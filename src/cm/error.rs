//! What goes wrong with connections.

use crate::cq::CqError;
use crate::device::DeviceError;
use crate::qp::BuildError;
use crate::work::PostError;
use std::io;
use urxe_driver::cm::CmError;
use urxe_driver::qp::{ModifyError, MulticastError};
use urxe_driver::route::RouteError;
use urxe_proto::cm::wire::{RejectReason, SidrStatus};

/// Why there is no listener, no route or no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the connection manager says of an address, a port or a message.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// No descriptor is left for its events, or the kernel does not let them be waited for.
    #[error(
        "events of connections need a file descriptor ({0}): close some files, or raise the limit \
         (`ulimit -n`)"
    )]
    Channel(#[source] io::Error),
    /// The wait for an event failed.
    #[error("an event could not be waited for: {0}")]
    Wait(#[from] io::Error),
    /// The peer, or whoever answers for it, does not want the connection.
    #[error("the connection is rejected: {reason}")]
    Rejected {
        /// Why.
        reason: RejectReason,
        /// From the peer's program, with the zeros that fill the message.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    #[error("the peer does not answer: is it up, and does its network let UDP port 4791 through?")]
    Unreachable,
    /// The peer, or whoever answers for it, has no such datagram service, or does not want the request.
    #[error("the service is not to be had: {status}")]
    NoService {
        /// Why.
        status: SidrStatus,
        /// From the peer's program, with the zeros that fill the message.
        private_data: Vec<u8>,
    },
    /// The peer ended the connection while it was made.
    #[error("the peer has ended the connection")]
    Disconnected,
    /// The interface went away meanwhile.
    #[error("the device is gone: its interface was removed")]
    DeviceGone,
    /// The queue pair is of a device that does not lead to the peer.
    #[error("the queue pair is of {given}, but the way to the peer begins at {needed}")]
    OtherDevice {
        /// Whose it is.
        given: String,
        /// Whose it should be.
        needed: String,
    },
    /// The connection needs a queue pair of the reliable service.
    #[error("the queue pair is not of a reliable connection: make it with `build`")]
    NotReliable,
    /// The queue pair takes datagrams with another key than services have.
    #[error("the queue pair takes datagrams with another key: make it with `cm::QKEY`")]
    OtherQKey,
    /// What was asked for was there before, or had failed.
    #[error("the connection is made already, or has failed")]
    Finished,
    /// The way to the peer, or to a group, cannot be taken.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A queue pair cannot join a group.
    #[error(transparent)]
    Multicast(#[from] MulticastError),
    /// The queue pair cannot be made ready.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The queue pair cannot be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A completion queue cannot be made.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// A work request cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Error {
    /// The `errno` that a program of librdmacm would get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Cm(error) => error.errno(),
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
