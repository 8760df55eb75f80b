//! The connection manager: connections by IP address and port, with the semantics of librdmacm.
//!
//! - [`id`]: identifiers, the calls that each state permits, and the events that report the
//!   results.
//! - [`channel`]: events, and the event channels that deliver them to applications.
//! - [`connection`]: connect, listen, accept, reject, disconnect.
//! - `notice`: messages from peers and the events that they cause.
//! - [`multicast`]: multicast groups.
//! - [`resolve`]: from IP addresses to devices and paths.
//! - [`port_space`]: ports, unique on the host.
//! - `changes`: interfaces and addresses that appear, change and disappear.
//!
//! Queue pair 1, [`gsi`], exchanges its messages with peers. The protocol itself is implemented in
//! `urxe_proto::cm`.

mod changes;
pub mod channel;
pub mod connection;
mod error;
pub mod id;
pub mod multicast;
mod notice;
mod port_range;
pub mod port_space;
pub mod resolve;

pub use crate::queues::gsi;
pub use channel::{Event, EventChannel, EventKind};
pub use connection::Offer;
pub use error::CmError;
pub use id::{Id, State};
pub use port_space::PortSpace;
