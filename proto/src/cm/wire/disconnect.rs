//! DREQ and DREP: the request to disconnect, and its reply (12.6.10, 12.6.11).

use super::bits::{join, split};
use super::private_data::PrivateData;
use crate::ids::Qpn;
use crate::wire::Layout;
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in a DREQ.
pub const DREQ_PRIVATE_DATA: usize = 220;
/// Bytes of private data in a DREP.
pub const DREP_PRIVATE_DATA: usize = 224;

/// A request for communication release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data for the program.
    pub private_data: PrivateData<DREQ_PRIVATE_DATA>,
}

/// The layout of a DREQ on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DreqRaw {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Remote QPN or EECN (24 bits), reserved (8).
    remote_qpn: U32,
    private_data: [u8; DREQ_PRIVATE_DATA],
}

impl Layout for Dreq {
    type Raw = DreqRaw;
    const NAME: &'static str = "DREQ";

    fn from_raw(raw: &DreqRaw) -> Self {
        Dreq {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            remote_qpn: Qpn::new(split(raw.remote_qpn).0),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> DreqRaw {
        DreqRaw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            remote_qpn: join(self.remote_qpn.get(), 0),
            private_data: self.private_data.0,
        }
    }
}

/// A reply to a request for communication release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// Private data for the program.
    pub private_data: PrivateData<DREP_PRIVATE_DATA>,
}

/// The layout of a DREP on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DrepRaw {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; DREP_PRIVATE_DATA],
}

impl Layout for Drep {
    type Raw = DrepRaw;
    const NAME: &'static str = "DREP";

    fn from_raw(raw: &DrepRaw) -> Self {
        Drep {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> DrepRaw {
        DrepRaw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            private_data: self.private_data.0,
        }
    }
}
