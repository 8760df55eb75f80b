//! CM messages and their MADs (12.6 to 12.11).
//!
//! Each message, or pair of messages, has a file with its wire layout, its plain representation and
//! the conversions. [`mad`] is the common header, [`Message`] the type of all messages, and [`ip`]
//! the header of the RDMA IP CM service in private data.
//!
//! Invalid field values are preserved. The state machines decide how to answer them.

pub mod alternate;
mod answered;
mod bits;
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
pub use answered::Answered;
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
