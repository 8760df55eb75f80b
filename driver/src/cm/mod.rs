//! The connection manager: connections by IP address and port, as programs of librdmacm know them.
//!
//! - [`id`]: identifiers, what may be done with them when, and the events that tell what became of it.
//! - [`channel`]: events, and the queues that programs wait for them on.
//! - [`connection`]: connecting, listening, answering, ending. `notice`: what peers do.
//! - groups: [`multicast`].
//! - [`resolve`]: from IP addresses to devices and paths. [`port_space`]: ports, unique on the host.
//!
//! - [`gsi`]: queue pair 1, by which peers agree on connections.
//!
//! - `changes`: interfaces and addresses that come and go.
//!
//! What goes to and from the peer is `urxe_proto`'s.

mod changes;
pub mod channel;
pub mod connection;
mod error;
pub mod gsi;
pub mod id;
pub mod multicast;
mod notice;
mod port_range;
pub mod port_space;
pub mod resolve;

pub(crate) use changes::addresses_changed;
pub use channel::{Event, EventChannel, EventKind};
pub use connection::Offer;
pub use error::CmError;
pub use id::{Id, State};
pub use port_space::PortSpace;
