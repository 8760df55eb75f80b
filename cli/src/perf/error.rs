//! Failures of measurements.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a measurement, or a connection of the listening end, fails.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    #[error("cannot listen at port {port}: {source}\n`urxe doctor` checks this host")]
    Listen {
        port: u16,
        #[source]
        source: urxe::cm::Error,
    },
    #[error("{0}")]
    NoDevice(String),
    #[error("cannot resolve {peer}: {source}; give a host name or an IP address")]
    Name {
        peer: String,
        #[source]
        source: io::Error,
    },
    #[error("{0} has no address; give a host name or an IP address")]
    NoAddress(String),
    #[error(
        "cannot connect to {peer}: {source}\nRun `urxe perf --listen` there; `urxe doctor {ip}` \
         checks the path",
        ip = .peer.ip()
    )]
    Connect {
        peer: SocketAddr,
        #[source]
        source: urxe::cm::Error,
    },
    #[error("the peer is another program, or another version of urxe: run the same version there")]
    OtherProgram,
    #[error("at least one queue pair is needed")]
    NoQueuePair,
    #[error("an operation fails: {0}\nThe peer may have ended; `urxe doctor` checks the path")]
    Operation(#[source] urxe::WorkError),
    #[error("no operation completes for {} s: check the path with `urxe doctor`", .0.as_secs())]
    Stalled(Duration),
    #[error(transparent)]
    Urxe(#[from] urxe::Error),
}

/// The errors of single calls, which need no advice of their own.
macro_rules! from_call {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for PerfError {
            fn from(error: $error) -> Self {
                Self::Urxe(error.into())
            }
        }
    )*};
}

from_call!(
    urxe::cm::Error,
    urxe::BuildError,
    urxe::CqError,
    urxe::RegisterError,
    urxe::PostError,
    urxe::RangeError,
);
