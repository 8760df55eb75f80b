//! UDP for RoCEv2: batches and offloads, sharing of port 4791, interfaces, capture, injected
//! faults.
//!
//! This crate sends and receives RoCEv2 packets over ordinary UDP sockets. It computes and verifies
//! their ICRC, and shares UDP port 4791 among the processes of a host. Of the headers behind UDP it
//! reads the BTH, and on queue pair 1 the MAD. Queue pairs, keys and work requests belong to the
//! layers above: this crate can be used without them, as in a test tool or another transport.
//!
//! # Example
//!
//! ```
//! use urxe_net::{Endpoint, LocalAddress, Options, PathOptions, RecvBatch, SendBatch, Shared};
//! use urxe_proto::host::Transmit;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Once per process: takes a part of the queue pair numbers for it.
//! let shared = Shared::new(Options::default())?;
//! // Any address of 127.0.0.0/8 is one of this host.
//! let address = LocalAddress::new([127, 0, 47, 9].into(), 0);
//! let endpoint: Endpoint = shared.open(address)?;
//!
//! // A packet from the BTH to the end of the payload: opcode, flags, P_Key, destination QPN, PSN.
//! let qpn = shared.qpns().start() + 7;
//! let mut packet = [0; 16];
//! packet[0] = 0x64; // UD SEND only
//! packet[4..8].copy_from_slice(&qpn.to_be_bytes());
//! packet[12..].copy_from_slice(b"data");
//!
//! // Packets are staged, sealed with their ICRC, and sent with few system calls.
//! let path = endpoint.path(address.ip(), PathOptions::default())?;
//! let mut send = SendBatch::default();
//! send.begin(&path);
//! for _ in 0..3 {
//!     let buffer = send.stage(packet.len()).ok_or("the batch is full")?;
//!     buffer.copy_from_slice(&packet);
//!     send.commit();
//! }
//! assert_eq!(send.flush().packets, 3);
//!
//! // A program would poll `endpoint.fd()`. The closure is called once for each datagram.
//! let mut batch = RecvBatch::new();
//! let mut received = 0;
//! while received < 3 {
//!     endpoint.recv(&mut batch, |datagram| {
//!         assert_eq!(datagram.packet(), packet);
//!         received += 1;
//!     })?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Kernel features
//!
//! Each has a fallback where it is missing:
//!
//! - **GSO** (`UDP_SEGMENT`): one message carries a run of equal packets. Without it `sendmmsg`
//!   sends many packets per call.
//! - **GRO** (`UDP_GRO`): such a run arrives as one message. Without it `recvmmsg` receives many
//!   packets per call.
//! - **`SO_REUSEPORT` with a steering program**: processes share port 4791; see [`Shared`]. Where
//!   the program is refused, the kernel distributes flows by a hash, and each process forwards the
//!   packets of the others.
//! - **Netlink**: reports interfaces and their changes. Where it is refused, `/proc` and ioctls
//!   report the interfaces without the changes.
//!
//! # Use in a process
//!
//! A process has one [`Shared`], one [`Endpoint`] for each of its addresses, and one [`Path`] for
//! each peer. Threads have a [`RecvBatch`] and a [`SendBatch`] each. A program polls
//! [`Endpoint::fd`], [`Endpoint::service_fd`] and [`Shared::fd`], and calls [`Endpoint::recv`],
//! [`Endpoint::service`] and [`Shared::recv_forwarded`]. With `URXE_FAULTS` sent and received
//! packets go through a fault injector, and with `URXE_PCAP` to a capture file.
//!
//! Threads that receive for different queue pairs may read different sockets of an address:
//! [`Endpoint::add_receive_sockets`] opens more, and [`receive_socket_of`] is the number of the
//! socket at which the datagrams of a queue pair usually arrive. The program then calls
//! [`Endpoint::fill`] and [`Endpoint::deliver`] with the numbers of all sockets.
//!
//! # Cargo features
//!
//! - `capture` (default): captures of packets, which `URXE_PCAP` requests. Without the feature a
//!   request is an error ([`CaptureError::NotBuilt`]).

mod address;
mod capture;
mod clock;
mod counters;
mod datagram;
mod endpoint;
mod error;
mod faults;
mod forward;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod icrc;
mod inbound;
mod interfaces;
mod link;
mod message_headers;
pub mod names;
mod options;
mod path;
#[cfg(feature = "capture")]
mod pcap;
pub mod process_socket;
mod qpn;
pub mod random;
mod receive;
mod receivers;
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
pub use capture::CaptureError;
pub use clock::{now, wall};
pub use counters::{Counter, NetCounters};
pub use datagram::{Datagram, OwnedDatagram};
pub use endpoint::Endpoint;
pub use error::{OpenError, PortOwner};
pub use faults::{FaultDirection, FaultSpec, ParseError as FaultParseError, QueueLimit};
pub use group::Group;
pub use interfaces::{Address, Interface, Monitor, list as list_interfaces};
pub use link::Link;
pub use options::{Options, variable};
pub use path::{Path, PathOptions};
pub use qpn::{MAX_RECEIVE_SOCKETS, QPN_BITS, SLOTS, receive_socket_of};
pub use receive::RecvBatch;
pub use send::{DEFAULT_CAPACITY, SendBatch, SendReport};
pub use sharing::Shared;
pub use slot::watch;
pub use socket::{TxSocket, open_exclusive};
pub use stat::{Answer, Answers, Listener, query, send_to_listeners};
pub use steering::is_steering_probe;
