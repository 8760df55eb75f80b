//! UDP for RoCEv2: sockets and their offloads, sharing of port 4791, interfaces, capture, faults.
//!
//! The crate sends and receives datagrams. It computes and verifies their ICRC. Of the headers
//! behind UDP it reads the BTH, and on queue pair 1 the MAD. It knows no queue pairs, keys or work
//! requests.
//!
//! The kernel features it uses, and the fallback where each is missing:
//!
//! - **GSO** (`UDP_SEGMENT`): one message carries a run of equal packets. Without it `sendmmsg`
//!   still takes many packets per call.
//! - **GRO** (`UDP_GRO`): such a run arrives as one message. Without it `recvmmsg` takes many per
//!   call.
//! - **`SO_REUSEPORT` with a steering program**: processes share port 4791, see `sharing.rs`. Where
//!   the program is refused, the kernel distributes flows by a hash, and each process forwards the
//!   packets of the others.
//! - **Netlink**: reports interfaces and their changes. Where it is refused, `/proc` and ioctls
//!   report the interfaces without the changes.
//!
//! [`Endpoint::recv`] receives a batch, splits it into datagrams, forwards those of other
//! processes, verifies each ICRC and captures. [`SendBatch`] stages packets, seals them with their
//! ICRC, groups them for GSO, captures and sends. With `URXE_FAULTS` both go through the fault
//! injector.

mod address;
mod clock;
mod counters;
mod endpoint;
mod error;
mod faults;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod icrc;
mod interfaces;
mod link;
pub mod names;
mod options;
mod path;
mod pcap;
pub mod process_socket;
mod qpn;
pub mod random;
mod receive;
mod send;
mod sharing;
mod slot;
mod socket;
mod stat;
mod steering;
mod sync;
mod sys;
#[cfg(test)]
mod tests;
pub mod thread;
mod user;

pub use address::{DEFAULT_TTL, FIRST_SOURCE_PORT, LocalAddress, ROCE_PORT};
pub use clock::{now, wall};
pub use counters::{Counter, NetCounters};
pub use endpoint::Endpoint;
pub use error::{OpenError, PortHolder};
pub use faults::{FaultDirection, FaultSpec, ParseError as FaultParseError};
pub use group::Group;
pub use interfaces::{Address, Interface, Monitor, list as list_interfaces};
pub use link::Link;
pub use options::Options;
pub use path::{Path, PathOptions};
pub use pcap::CaptureError;
pub use qpn::{QPN_BITS, SLOTS};
pub use receive::{Datagram, OwnedDatagram, RecvBatch};
pub use send::{DEFAULT_CAPACITY, SendBatch, SendReport};
pub use sharing::Shared;
pub use slot::watch;
pub use socket::{TxSocket, open_exclusive};
pub use stat::{Answer, Answers, Listener, query, send_to_listeners};
