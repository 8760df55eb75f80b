//! The connection manager: connections by IP address and port, with the semantics of librdmacm.
//!
//! - [`id`]: identifiers, the calls that each state permits, and the events that report the
//!   results, with the channels that deliver them.
//! - [`channel`]: the kinds of events and their details.
//! - [`connection`]: connect, listen, accept, reject, disconnect.
//! - `notice`: messages from peers and the events that they cause.
//! - [`multicast`]: multicast groups.
//! - [`resolve`]: from IP addresses to devices and paths.
//! - [`port_space`]: ports, unique on the host.
//! - `addresses`: the open addresses, and those that appear later.
//! - `changes`: devices that change or disappear.
//!
//! Queue pair 1, [`gsi`], exchanges its messages with peers. The protocol itself is implemented in
//! `urxe_proto::cm`.

mod addresses;
mod bind_address;
mod changes;
pub mod channel;
pub mod connection;
mod error;
mod group;
pub mod id;
pub mod multicast;
mod notice;
mod port_range;
pub mod port_space;
pub mod resolve;
mod state;

pub use crate::queues::gsi;
pub use channel::EventKind;
pub use connection::ConnParam;
pub use error::CmError;
pub use id::{Event, EventChannel, Id};
pub use port_space::PortSpace;
pub use state::State;
