//! Wire formats of packets (chapter 9; annexes A14, A17, A19).
//!
//! Each header has a file with its wire layout, its plain representation and the conversions.
//! [`opcode`] is the table of the headers that each packet type has. [`packet`] parses and emits
//! whole packets, from the BTH to the pad. The ICRC also covers the IP and UDP headers; it is in
//! [`crate::icrc`].
//!
//! These modules check everything that a packet alone determines. Checks that depend on the queue
//! pair, such as path MTU, message state and source address, belong to the state machines.

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod cnp;
pub mod deth;
pub mod error;
pub mod feth;
pub mod grh;
pub mod ieth;
pub mod immdt;
pub mod layout;
pub mod opcode;
pub mod packet;
pub mod rdeth;
pub mod reth;
pub mod xrceth;

pub use aeth::{Aeth, Credits, NakCode, RnrTimer, Syndrome};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use cnp::Cnp;
pub use deth::Deth;
pub use error::ParseError;
pub use feth::Feth;
pub use grh::{Grh, GrhError};
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use layout::Layout;
pub use opcode::{Headers, Opcode, OpcodeInfo, Operation, PayloadRule, Position, Transport};
pub(crate) use packet::emit_ack;
pub use packet::{Header, Packet, packet_len, pad_of};
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use xrceth::Xrceth;

/// The UDP destination port of RoCEv2 (A17).
pub const UDP_PORT: u16 = 4791;
