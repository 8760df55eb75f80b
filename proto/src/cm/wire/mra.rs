//! MRA: a message has been received, and its answer is delayed (12.6.6).

use super::answered::Answered;
use super::private_data::PrivateData;
use crate::wire::Layout;
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in an MRA.
pub const PRIVATE_DATA: usize = 222;

/// A message receipt acknowledgment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// The message that was received.
    pub answered: Answered,
    /// The delay of the answer: 4.096 us x 2^n, n up to 31.
    pub service_timeout: u8,
    /// Private data for the program.
    pub private_data: PrivateData<PRIVATE_DATA>,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Message MRAed (2 bits), reserved (6).
    answered: u8,
    /// Service timeout (5 bits), reserved (3).
    timeout: u8,
    private_data: [u8; PRIVATE_DATA],
}

impl Layout for Mra {
    type Raw = Raw;
    const NAME: &'static str = "MRA";

    fn from_raw(raw: &Raw) -> Self {
        Mra {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            answered: Answered::from_byte(raw.answered),
            service_timeout: raw.timeout >> 3,
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> Raw {
        Raw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            answered: self.answered.byte(),
            timeout: self.service_timeout << 3,
            private_data: self.private_data.0,
        }
    }
}
