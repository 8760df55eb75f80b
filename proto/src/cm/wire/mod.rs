//! CM messages and their MADs (12.6 to 12.11).
//!
//! Each message, or pair of messages, has a file with its wire layout, its plain representation and
//! the conversions. [`mad`] is the common header, [`Message`] the type of all messages, and [`ip`]
//! the header of the RDMA IP CM service in private data.
//!
//! Invalid field values are preserved. The state machines decide how to answer them.

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
pub use ip::{IpHeader, IpHeaderError, PortSpace, ServiceId, requested_address};
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

/// The message that an MRA or a REJ answers (12.6.6, 12.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// A LAP in an MRA; no specific message in a REJ.
    Other,
    /// The reserved value.
    Reserved,
}

impl Answered {
    /// Decodes the top two bits of a byte; the others are reserved.
    fn from_byte(byte: u8) -> Self {
        [Self::Req, Self::Rep, Self::Other, Self::Reserved][usize::from(byte >> 6)]
    }

    /// Encodes the value as the top two bits of a byte.
    fn byte(self) -> u8 {
        (self as u8) << 6
    }
}

/// Splits a field into its high 24 bits and its low byte.
fn split(field: U32) -> (u32, u8) {
    (field.get() >> 8, field.get() as u8)
}

/// Joins the low 24 bits of `high` and the byte `low` below them.
fn join(high: u32, low: u8) -> U32 {
    U32::new(high << 8 | u32::from(low))
}

/// Returns the low `width` bits of `value`.
const fn low_bits(value: u8, width: u32) -> u8 {
    value & ((1 << width) - 1)
}
