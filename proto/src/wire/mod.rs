//! Wire formats: what the bytes of a packet mean (chapter 9; annexes A14, A17, A19).
//!
//! There is a file a header, each with the layout on the wire, a plain representation, and the way
//! between the two. [`opcode`] is the table that says which headers a packet has; [`packet`] puts
//! them together, from the BTH to the pad. The ICRC, which covers what lies below UDP too, is in
//! [`crate::icrc`].
//!
//! Everything that a packet alone can tell is checked here. What depends on the queue pair - its
//! path MTU, the state of a message, who may send to it - is for the state machines to check.

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod cnp;
pub mod deth;
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
pub use feth::Feth;
pub use grh::{Grh, GrhError};
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use layout::Layout;
pub use opcode::{Headers, Opcode, OpcodeInfo, Operation, PayloadRule, Position, Transport};
pub use packet::{Header, Packet, ParseError, packet_len, pad_of};
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use xrceth::Xrceth;

/// The UDP port that RoCEv2 packets go to (A17).
pub const UDP_PORT: u16 = 4791;
