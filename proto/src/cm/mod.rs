//! Communication management (chapter 12): connection setup and teardown, and service ID resolution.
//!
//! [`Manager`] is the sans-I/O communication manager of a process, for all its devices. MADs with
//! their addresses, the calls of the program and the time go in; MADs, events and the next deadline
//! come out:
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
//! The unanswered REQs to a destination are limited (`pacing`); further requests wait in a FIFO.
//! Unanswered messages are retransmitted, and duplicates get the same answer again. A connection
//! that has ended stays in TimeWait until no packet of it can be in flight. The last event of an
//! identifier marks its end.
//!
//! - [`wire`]: the messages.
//! - `connection`: the state machine of one connection; `resolution`: service ID resolution.
//! - `manager`: the tables of identifiers, and the dispatch of messages.

mod admission;
mod connection;
mod deadlines;
mod event;
mod listener;
mod manager;
mod outbox;
mod pacing;
mod resolution;
mod retransmission;
mod round_trip;
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

/// A local communication ID: names a connection or resolution to the program and the peer (12.7.1).
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

/// The addresses of a MAD, in either direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The local GID.
    pub local: Gid,
    /// The peer's GID.
    pub remote: Gid,
    /// The peer's queue pair: [`Qpn::GSI`] unless the peer redirected to another.
    pub remote_qpn: Qpn,
    /// The traffic class or type of service.
    pub traffic_class: u8,
}

/// A source of identifiers.
///
/// They should be unpredictable: knowledge of them suffices to end a connection.
pub trait Ids {
    /// Returns a communication ID. The manager calls again if it is 0 or in use.
    fn comm_id(&mut self) -> u32;

    /// Returns a transaction ID for a MAD.
    fn transaction(&mut self) -> u64;
}
