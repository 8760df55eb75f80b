//! Errors of the connection manager.

use super::port_space::PortError;
use super::resolve::ResolveError;
use super::state::State;
use crate::queues::gsi::GsiError;
use std::net::IpAddr;
use urxe_net::OpenError;
use urxe_proto::cm::CallError;
use urxe_proto::cm::wire::TooLong;

/// Errors of calls on an identifier.
#[derive(Debug, thiserror::Error)]
pub enum CmError {
    /// The identifier's state does not permit the call: EINVAL.
    #[error("{call} is not possible while the identifier is {state}")]
    State {
        /// The call.
        call: &'static str,
        /// The state.
        state: State,
    },
    /// The identifier is not bound to a device: EINVAL.
    #[error("the identifier has no device yet: bind it to an address, or resolve one")]
    NoDevice,
    /// Source and destination have different IP versions: EINVAL.
    #[error("the identifier is bound to an address of the other IP version than the destination")]
    Versions,
    /// The option does not have such a value: EINVAL.
    #[error("{value} is no {option}")]
    Option {
        /// The option.
        option: &'static str,
        /// The value.
        value: u32,
    },
    /// The address is not a multicast address, or the identifier is not for datagrams: EINVAL.
    #[error("{0} is no multicast address, or the identifier not one of datagrams")]
    NotMulticast(IpAddr),
    /// The identifier has not joined the group: EADDRNOTAVAIL.
    #[error("the identifier has not joined {0}")]
    NotJoined(IpAddr),
    /// The queue pair belongs to another device than the identifier: EINVAL.
    #[error(
        "the queue pair is of {given}, and the connection needs one of {needed}: create it on \
         the device of the identifier"
    )]
    OtherDevice {
        /// The device of the queue pair.
        given: String,
        /// The device of the identifier.
        needed: String,
    },
    /// The port space is IP over InfiniBand, whose queue key is that of a group RoCE does not have:
    /// ENODEV.
    #[error("the port space RDMA_PS_IPOIB is not for RoCE: use RDMA_PS_UDP")]
    NoIpoib,
    /// The private data does not fit the message: EINVAL.
    #[error("private data: {0}")]
    PrivateData(#[from] TooLong),
    /// The state of the connection does not permit the call: EINVAL.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An error of queue pair 1.
    #[error(transparent)]
    Gsi(#[from] GsiError),
    /// Port 4791 cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port cannot be taken.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The address cannot be resolved.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

impl CmError {
    /// Returns the error number that applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::State { .. }
            | Self::NoDevice
            | Self::Versions
            | Self::Option { .. }
            | Self::NotMulticast(_)
            | Self::OtherDevice { .. }
            | Self::PrivateData(_)
            | Self::Call(_) => libc::EINVAL,
            Self::Gsi(error) => error.errno(),
            Self::Open(error) => error.errno(),
            Self::NotJoined(_) => libc::EADDRNOTAVAIL,
            Self::NoIpoib => libc::ENODEV,
            Self::Port(error) => error.errno(),
            Self::Resolve(error) => error.errno(),
        }
    }
}
