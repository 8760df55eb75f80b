//! RTU: the sender is ready to use the connection (12.6.9).

use super::private_data::PrivateData;
use crate::wire::Layout;
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in an RTU.
pub const PRIVATE_DATA: usize = 224;

/// Ready to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// Private data for the program.
    pub private_data: PrivateData<PRIVATE_DATA>,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; PRIVATE_DATA],
}

impl Layout for Rtu {
    type Raw = Raw;
    const NAME: &'static str = "RTU";

    fn from_raw(raw: &Raw) -> Self {
        Rtu {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> Raw {
        Raw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            private_data: self.private_data.0,
        }
    }
}
