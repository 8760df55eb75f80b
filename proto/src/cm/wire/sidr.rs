//! SIDR_REQ and SIDR_REP: service ID resolution (12.11).

use super::bits::{join, split};
use super::ip::ServiceId;
use super::private_data::{Info, PrivateData};
use crate::ids::{PKey, QKey, Qpn};
use crate::wire::Layout;
use std::fmt;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in a SIDR_REQ.
pub const REQ_PRIVATE_DATA: usize = 216;
/// Bytes of private data in a SIDR_REP.
pub const REP_PRIVATE_DATA: usize = 136;

/// A service ID resolution request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's ID of the request, which the reply repeats.
    pub request_id: u32,
    /// The partition key.
    pub pkey: PKey,
    /// The requested service ID.
    pub service: ServiceId,
    /// Private data for the program.
    pub private_data: PrivateData<REQ_PRIVATE_DATA>,
}

/// The layout of a SIDR_REQ on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReqRaw {
    request_id: U32,
    pkey: U16,
    reserved: U16,
    service: U64,
    private_data: [u8; REQ_PRIVATE_DATA],
}

impl Layout for SidrReq {
    type Raw = ReqRaw;
    const NAME: &'static str = "SIDR_REQ";

    fn from_raw(raw: &ReqRaw) -> Self {
        SidrReq {
            request_id: raw.request_id.get(),
            pkey: PKey(raw.pkey.get()),
            service: ServiceId(raw.service.get()),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> ReqRaw {
        ReqRaw {
            request_id: U32::new(self.request_id),
            pkey: U16::new(self.pkey.0),
            reserved: U16::ZERO,
            service: U64::new(self.service.0),
            private_data: self.private_data.0,
        }
    }
}

/// The status of a service ID resolution (12.11.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The queue pair and its key are valid.
    pub const VALID: SidrStatus = SidrStatus(0);
    /// The service is not supported.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The request is rejected by the service provider.
    pub const REJECTED: SidrStatus = SidrStatus(2);
    /// No queue pair is available.
    pub const NO_QP: SidrStatus = SidrStatus(3);
    /// The service is redirected to another port or queue pair.
    pub const REDIRECTED: SidrStatus = SidrStatus(4);
    /// The version is not supported.
    pub const UNSUPPORTED_VERSION: SidrStatus = SidrStatus(5);
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::VALID => "valid",
            Self::UNSUPPORTED => "the service is not supported",
            Self::REJECTED => "the service provider rejected the request",
            Self::NO_QP => "no queue pair is available",
            Self::REDIRECTED => "the service is redirected",
            Self::UNSUPPORTED_VERSION => "the version is not supported",
            SidrStatus(other) => return write!(f, "status {other}"),
        })
    }
}

/// A service ID resolution reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The ID of the request.
    pub request_id: u32,
    /// The status.
    pub status: SidrStatus,
    /// Additional information.
    pub info: Info,
    /// The queue pair that has the service.
    pub qpn: Qpn,
    /// The service ID.
    pub service: ServiceId,
    /// The queue key of the queue pair.
    pub qkey: QKey,
    /// Private data for the program.
    pub private_data: PrivateData<REP_PRIVATE_DATA>,
}

/// The layout of a SIDR_REP on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RepRaw {
    request_id: U32,
    status: u8,
    info_len: u8,
    reserved: U16,
    /// QPN (24 bits), reserved (8).
    qpn: U32,
    service: U64,
    qkey: U32,
    info: [u8; Info::MAX_LEN],
    private_data: [u8; REP_PRIVATE_DATA],
}

impl Layout for SidrRep {
    type Raw = RepRaw;
    const NAME: &'static str = "SIDR_REP";

    fn from_raw(raw: &RepRaw) -> Self {
        SidrRep {
            request_id: raw.request_id.get(),
            status: SidrStatus(raw.status),
            info: Info::from_wire(raw.info_len, &raw.info),
            qpn: Qpn::new(split(raw.qpn).0),
            service: ServiceId(raw.service.get()),
            qkey: QKey(raw.qkey.get()),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> RepRaw {
        let (info_len, info) = self.info.to_wire();
        RepRaw {
            request_id: U32::new(self.request_id),
            status: self.status.0,
            info_len,
            reserved: U16::ZERO,
            qpn: join(self.qpn.get(), 0),
            service: U64::new(self.service.0),
            qkey: U32::new(self.qkey.0),
            info,
            private_data: self.private_data.0,
        }
    }
}
