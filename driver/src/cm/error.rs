//! What goes wrong in the connection manager.

use super::gsi::GsiError;
use super::id::State;
use super::port_space::PortError;
use super::resolve::ResolveError;
use std::net::IpAddr;
use urxe_net::OpenError;
use urxe_proto::cm::CallError;
use urxe_proto::cm::wire::TooLong;

/// Why something cannot be done with an identifier.
#[derive(Debug, thiserror::Error)]
pub enum CmError {
    /// Not now: EINVAL.
    #[error("{call} is not possible while the identifier is {state}")]
    State {
        /// What was asked for.
        call: &'static str,
        /// What it is.
        state: State,
    },
    /// It is bound to no device yet: EINVAL.
    #[error("the identifier has no device yet: bind it to an address, or resolve one")]
    NoDevice,
    /// Source and destination are of different IP versions: EINVAL.
    #[error("the identifier is bound to an address of the other IP version than the destination")]
    Versions,
    /// An option has no such value: EINVAL.
    #[error("{value} is no {option}")]
    Option {
        /// The option.
        option: &'static str,
        /// What it was to be.
        value: u32,
    },
    /// It is no group, or the queue pair none of datagrams: EINVAL.
    #[error("{0} is no multicast address, or the identifier not one of datagrams")]
    NotMulticast(IpAddr),
    /// The group was not joined: EADDRNOTAVAIL.
    #[error("the identifier has not joined {0}")]
    NotJoined(IpAddr),
    /// Datagrams of IP over InfiniBand have the queue key of a group that RoCE does not have: ENODEV.
    #[error("the port space RDMA_PS_IPOIB is not for RoCE: use RDMA_PS_UDP")]
    NoIpoib,
    /// More private data than the message carries: EINVAL.
    #[error("private data: {0}")]
    PrivateData(#[from] TooLong),
    /// The connection is not in a state for this: EINVAL.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Queue pair 1 cannot do it.
    #[error(transparent)]
    Gsi(#[from] GsiError),
    /// Port 4791 cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port cannot be had.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The address leads nowhere.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

impl CmError {
    /// What programs get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::State { .. }
            | Self::NoDevice
            | Self::Versions
            | Self::Option { .. }
            | Self::NotMulticast(_)
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
