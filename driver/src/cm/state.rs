//! The states of an identifier.

use std::fmt;

/// The state of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Created, without an address.
    Idle,
    /// Bound to an address and a port.
    Bound,
    /// The device for the destination is known.
    AddressResolved,
    /// The path to the destination is known.
    RouteResolved,
    /// Listening.
    Listening,
    /// Connected, or establishing a connection.
    Connecting,
    /// The connection has ended.
    Disconnected,
    /// The device has been removed.
    WithoutDevice,
    /// Being destroyed.
    Closed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Idle => "unbound",
            State::Bound => "bound, but its address not resolved",
            State::AddressResolved => "without a route",
            State::RouteResolved => "ready to connect",
            State::Listening => "listening",
            State::Connecting => "connected, or about to be",
            State::Disconnected => "disconnected",
            State::WithoutDevice => "without its device, which is gone",
            State::Closed => "being destroyed",
        })
    }
}
