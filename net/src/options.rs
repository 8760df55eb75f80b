//! The network options of a process, and the environment variables that set them.

use crate::error::OpenError;
use crate::faults::FaultSpec;
use crate::sys::has_more_rights_than_its_user;
use std::env;
use std::time::Duration;
use urxe_proto::rc::congestion::Algorithm;

/// The network options of a process.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether to send GSO batches.
    pub gso: bool,
    /// Whether to receive GRO batches.
    pub gro: bool,
    /// The capture file; `%p` in it stands for the process ID.
    pub capture: Option<String>,
    /// The faults to inject.
    pub faults: Option<FaultSpec>,
    /// The size of the kernel's receive buffer in bytes, as far as the kernel permits it. `None`
    /// requests a large one, where permitted beyond `net.core.rmem_max`.
    pub socket_buffer: Option<u32>,
    /// The time for which the peer of a connection may be silent before it is considered dead,
    /// for connections made by the connection manager. `None` disables the check.
    pub keepalive_timeout: Option<Duration>,
    /// The congestion control algorithm of connections.
    pub congestion: Algorithm,
}

/// The default of [`Options::keepalive_timeout`].
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(60);

impl Default for Options {
    fn default() -> Self {
        Options {
            gso: true,
            gro: true,
            capture: None,
            faults: None,
            socket_buffer: None,
            keepalive_timeout: Some(KEEPALIVE_TIMEOUT),
            congestion: Algorithm::default(),
        }
    }
}

impl Options {
    /// Reads `URXE_PCAP`, `URXE_FAULTS`, `URXE_SOCKET_BUFFER`, `URXE_KEEPALIVE` and
    /// `URXE_CONGESTION` from the environment. A program with more rights than its user
    /// (set-user-ID, capabilities) ignores them: otherwise its user could make it overwrite any
    /// file with a capture.
    ///
    /// # Errors
    /// When one of the last four cannot be parsed; the message names the variable and the fault.
    pub fn from_env() -> Result<Options, OpenError> {
        let text = |name| variable(name).filter(|text| !text.is_empty());
        let faults = match text("URXE_FAULTS") {
            Some(text) => Some(text.parse::<FaultSpec>()?),
            None => None,
        };
        let socket_buffer = match text("URXE_SOCKET_BUFFER") {
            Some(text) => Some(text.parse().map_err(|_| OpenError::SocketBuffer(text))?),
            None => None,
        };
        let keepalive_timeout = match text("URXE_KEEPALIVE") {
            Some(text) => parse_keepalive(&text)?,
            None => Some(KEEPALIVE_TIMEOUT),
        };
        let congestion = match text("URXE_CONGESTION") {
            Some(text) => text.parse()?,
            None => Algorithm::default(),
        };
        Ok(Options {
            congestion,
            keepalive_timeout,
            capture: text("URXE_PCAP"),
            faults,
            socket_buffer,
            ..Options::default()
        })
    }
}

/// Returns the value of an environment variable that controls urxe; `None` if it is not set, or if
/// the program has more rights than its user.
pub fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name)?;
    if has_more_rights_than_its_user() {
        tracing::warn!("{name} is ignored: this program has more rights than its user");
        return None;
    }
    Some(value.to_string_lossy().into_owned())
}

/// Parses the seconds in `URXE_KEEPALIVE`; 0 means no limit.
fn parse_keepalive(text: &str) -> Result<Option<Duration>, OpenError> {
    match text.trim().parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(Duration::from_secs(seconds.into()))),
        Err(_) => Err(OpenError::Keepalive(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepalive_timeout_is_in_seconds_and_0_disables_it() {
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(parse_keepalive("90").unwrap(), seconds(90));
        assert_eq!(parse_keepalive(" 1 ").unwrap(), seconds(1));
        assert_eq!(parse_keepalive("0").unwrap(), None);
        for wrong in ["-1", "1s", "0.5", "for ever", "99999999999"] {
            let error = parse_keepalive(wrong).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }
}
