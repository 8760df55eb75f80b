//! The messages of communication management: what the bytes of their MADs mean (12.6 to 12.11).
//!
//! There is a file a message, or a pair of them, each with the layout on the wire, a plain
//! representation, and the way between the two. [`mad`] is the header that they share, [`Message`]
//! puts them together, and [`ip`] is what the RDMA IP CM service says in private data.
//!
//! Values that a field should not have are kept as they came: who answers them is for the state
//! machines.

pub mod alternate;
pub mod disconnect;
pub mod ece;
pub mod ip;
pub mod mad;
mod message;
pub mod mra;
pub mod path;
pub mod private_data;
pub mod reason;
pub mod rej;
pub mod rep;
pub mod req;
pub mod rtu;
pub mod sidr;
#[cfg(test)]
mod tests;

pub use alternate::{ApStatus, Apr, Lap};
pub use disconnect::{Drep, Dreq};
pub use ece::Ece;
pub use ip::{IpHeader, IpHeaderError, PortSpace, ServiceId};
pub use mad::{Attribute, Mad, MadError, MadHeader};
pub use message::{Addressee, Message};
pub use mra::Mra;
pub use path::Path;
pub use private_data::{Info, PrivateData, TooLong};
pub use reason::RejectReason;
pub use rej::Rej;
pub use rep::Rep;
pub use req::{Req, Transport};
pub use rtu::Rtu;
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use zerocopy::network_endian::U32;

/// Which message an MRA or a REJ answers (12.6.6, 12.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// A LAP in an MRA; no message in particular in a REJ.
    Other,
    /// The number that means nothing.
    Reserved,
}

impl Answered {
    /// From the top two bits of a byte, the others being reserved.
    fn from_byte(byte: u8) -> Self {
        [Self::Req, Self::Rep, Self::Other, Self::Reserved][usize::from(byte >> 6)]
    }

    /// To the top two bits of a byte.
    fn byte(self) -> u8 {
        (self as u8) << 6
    }
}

/// 24 bits and the byte below them.
fn split(field: U32) -> (u32, u8) {
    (field.get() >> 8, field.get() as u8)
}

/// The low 24 bits of `high`, with `low` below them.
fn join(high: u32, low: u8) -> U32 {
    U32::new(high << 8 | u32::from(low))
}

/// The bits of `value` that fit a field of `width` bits.
const fn low_bits(value: u8, width: u32) -> u8 {
    value & ((1 << width) - 1)
}
