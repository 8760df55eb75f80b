//! LAP and APR: a proposed alternate path, and the response to it (12.8).

use super::bits::{join, split};
use super::path::{LapRaw as PathRaw, Path};
use super::private_data::{Info, PrivateData};
use crate::ids::Qpn;
use crate::wire::Layout;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in a LAP.
pub const LAP_PRIVATE_DATA: usize = 168;
/// Bytes of private data in an APR.
pub const APR_PRIVATE_DATA: usize = 148;

/// Load alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lap {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The response timeout of the receiver: 4.096 us x 2^n, n up to 31.
    pub remote_response_timeout: u8,
    /// The alternate path.
    pub alternate: Path,
    /// Private data for the program.
    pub private_data: PrivateData<LAP_PRIVATE_DATA>,
}

/// The layout of a LAP on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LapRaw {
    local_comm_id: U32,
    remote_comm_id: U32,
    reserved: U32,
    /// Remote QPN or EECN (24 bits), remote CM response timeout (5), reserved (3).
    remote_qpn: U32,
    reserved_2: U32,
    alternate: PathRaw,
    private_data: [u8; LAP_PRIVATE_DATA],
}

impl Layout for Lap {
    type Raw = LapRaw;
    const NAME: &'static str = "LAP";

    fn from_raw(raw: &LapRaw) -> Self {
        let (remote_qpn, timeout) = split(raw.remote_qpn);
        Lap {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            remote_qpn: Qpn::new(remote_qpn),
            remote_response_timeout: timeout >> 3,
            alternate: Path::from_lap_raw(&raw.alternate),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> LapRaw {
        LapRaw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            reserved: U32::ZERO,
            remote_qpn: join(self.remote_qpn.get(), self.remote_response_timeout << 3),
            reserved_2: U32::ZERO,
            alternate: self.alternate.to_lap_raw(),
            private_data: self.private_data.0,
        }
    }
}

/// The status of an APR (12.8.2, table 117).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ApStatus(pub u8);

impl ApStatus {
    /// The alternate path is loaded.
    pub const LOADED: ApStatus = ApStatus(0);
    /// The connection does not exist.
    pub const INVALID_COMM_ID: ApStatus = ApStatus(1);
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: ApStatus = ApStatus(2);
}

/// Alternate path response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Apr {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// The status.
    pub status: ApStatus,
    /// Additional information.
    pub info: Info,
    /// Private data for the program.
    pub private_data: PrivateData<APR_PRIVATE_DATA>,
}

/// The layout of an APR on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AprRaw {
    local_comm_id: U32,
    remote_comm_id: U32,
    info_len: u8,
    status: u8,
    reserved: U16,
    info: [u8; Info::MAX_LEN],
    private_data: [u8; APR_PRIVATE_DATA],
}

impl Layout for Apr {
    type Raw = AprRaw;
    const NAME: &'static str = "APR";

    fn from_raw(raw: &AprRaw) -> Self {
        Apr {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            status: ApStatus(raw.status),
            info: Info::from_wire(raw.info_len, &raw.info),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> AprRaw {
        let (info_len, info) = self.info.to_wire();
        AprRaw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            info_len,
            status: self.status.0,
            reserved: U16::ZERO,
            info,
            private_data: self.private_data.0,
        }
    }
}
