//! Communication management (chapter 12): how two programs agree on a connection and on its end, and
//! how one finds out which datagram queue pair another has for a service.
//!
//! [`Manager`] is the whole of it, for all devices of a process. MADs with their addresses, the calls
//! of the program and the time go in; MADs, events and the next deadline come out:
//!
//! ```text
//!            connect ->  REQ  -> Event::Request
//!   Event::Reply     <-  REP  <- accept
//!              ready ->  RTU  -> Event::Ready
//!                  (the connection is used)
//!         disconnect ->  DREQ -> Event::DisconnectRequest
//! Event::Disconnected <- DREP <- disconnect
//! ```
//!
//! What the peer does not answer is repeated; what came twice is answered as before; a connection that
//! has ended waits until no packet of it can be under way. An identifier ceases to exist when its
//! connection has come to its end, which the last event says.
//!
//! - [`wire`]: the messages.
//! - `connection`: the state machine of one connection; `resolution`: of service ID resolution.
//! - `manager`: the tables of identifiers, who a message is for, and what to say when it is for nobody.

mod connection;
mod deadlines;
mod event;
mod listener;
mod manager;
mod outbox;
mod repeat;
mod resolution;
#[cfg(test)]
mod tests;
pub mod timing;
pub mod wire;

pub use connection::{Accept, CallError, Connect, ConnectionParameters, MraWhen, State};
pub use event::{Awaited, Event};
pub use listener::{ListenAt, ListenError, ListenerId};
pub use manager::{Manager, NoCommId};
pub use outbox::{Counters, Transmit};
pub use resolution::{Resolve, SidrAnswer};

use crate::ids::{Gid, Qpn};
use std::fmt;

/// A communication ID of ours, which names a connection, or a resolution, to the program and to the
/// peer (12.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommId({:#010x})", self.0)
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The way of a MAD between us and a peer, in either direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Our GID.
    pub local: Gid,
    /// The peer's GID.
    pub remote: Gid,
    /// The peer's queue pair: [`Qpn::GSI`] unless it said otherwise.
    pub remote_qpn: Qpn,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
}

/// Where identifiers come from. They should be hard to guess: knowing them is what lets somebody end a
/// connection.
pub trait Ids {
    /// A communication ID. One that is 0 or in use is not taken, and another asked for.
    fn comm_id(&mut self) -> u32;

    /// A transaction of a MAD.
    fn transaction(&mut self) -> u64;
}
