//! REJ: a rejection and its reason (12.6.7).

use super::answered::Answered;
use super::private_data::{Info, PrivateData};
use super::reason::RejectReason;
use crate::wire::Layout;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in a REJ.
pub const PRIVATE_DATA: usize = 148;

/// A reject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's communication ID; 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// The message that is rejected.
    pub answered: Answered,
    /// The reason.
    pub reason: RejectReason,
    /// Additional information: the valid value, or the sender's GUID.
    pub info: Info,
    /// Private data for the program.
    pub private_data: PrivateData<PRIVATE_DATA>,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Message REJected (2 bits), reserved (6).
    answered: u8,
    /// Reject info length (7 bits), reserved (1).
    info_len: u8,
    reason: U16,
    info: [u8; Info::MAX_LEN],
    private_data: [u8; PRIVATE_DATA],
}

impl Layout for Rej {
    type Raw = Raw;
    const NAME: &'static str = "REJ";

    fn from_raw(raw: &Raw) -> Self {
        Rej {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            answered: Answered::from_byte(raw.answered),
            reason: RejectReason(raw.reason.get()),
            info: Info::from_wire(raw.info_len >> 1, &raw.info),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> Raw {
        let (len, info) = self.info.to_wire();
        Raw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            answered: self.answered.byte(),
            info_len: len << 1,
            reason: U16::new(self.reason.0),
            info,
            private_data: self.private_data.0,
        }
    }
}
