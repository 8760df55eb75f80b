//! REQ: a request for communication (12.6.5).

use super::bits::{join, low_bits, split};
use super::ece::Ece;
use super::ip::ServiceId;
use super::path::{self, Path};
use super::private_data::PrivateData;
use crate::ids::{PKey, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::wire::Layout;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in a REQ.
pub const PRIVATE_DATA: usize = 92;

/// The transport service of the connection (12.7.6, A14.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram; not supported.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// An unknown extended transport; its number, 3 bits.
    Extended(u8),
}

/// The transport service type of extended transports (A14.5.1).
const EXTENDED: u8 = 3;
/// The extended transport type of XRC (A14.5.1).
const EXTENDED_XRC: u8 = 1;

impl Transport {
    fn from_fields(service_type: u8, extended: u8) -> Self {
        match (service_type, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, EXTENDED_XRC) => Self::Xrc,
            (_, other) => Self::Extended(other),
        }
    }

    /// The transport service type and the extended transport type.
    fn fields(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (EXTENDED, EXTENDED_XRC),
            Self::Extended(other) => (EXTENDED, low_bits(other, 3)),
        }
    }
}

/// A request for communication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The requested service ID.
    pub service: ServiceId,
    /// The GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// The queue key; for reliable datagrams only.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The most READs and atomics that the sender accepts at once.
    pub responder_resources: u8,
    /// The most READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// The response timeout of the receiver: 4.096 us x 2^n, n up to 31 (12.7.4).
    pub remote_response_timeout: u8,
    /// The transport service.
    pub transport: Transport,
    /// Whether the sender's queue pair implements end-to-end flow control.
    pub flow_control: bool,
    /// The first PSN that the receiver must send (12.7.31).
    pub starting_psn: Psn,
    /// The response timeout of the sender: 4.096 us x 2^n, n up to 31 (12.7.5).
    pub local_response_timeout: u8,
    /// The receiver's transport retry count: 0 to 7.
    pub retry_count: u8,
    /// The partition key.
    pub pkey: PKey,
    /// The path MTU as encoded; see [`Req::mtu`].
    pub path_mtu: u8,
    /// The receiver's retry count after an RNR NAK: 0 to 6; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// The most retransmissions of a message by either CM: 0 to 15.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The primary path.
    pub primary: Path,
    /// The alternate path; zeroes if there is none.
    pub alternate: Path,
    /// The sender's vendor options.
    pub ece: Ece,
    /// Private data for the program.
    pub private_data: PrivateData<PRIVATE_DATA>,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    local_comm_id: U32,
    /// Reserved (8 bits), vendor ID (24).
    vendor_id: U32,
    service: U64,
    ca_guid: U64,
    reserved_2: U32,
    qkey: U32,
    /// Local QPN (24 bits), responder resources (8).
    qpn: U32,
    /// Local EECN (24 bits), initiator depth (8).
    eecn: U32,
    /// Remote EECN (24 bits), remote CM response timeout (5), transport service type (2),
    /// end-to-end flow control (1).
    remote_eecn: U32,
    /// Starting PSN (24 bits), local CM response timeout (5), retry count (3).
    psn: U32,
    pkey: U16,
    /// Path packet payload MTU (4 bits), RDC exists (1), RNR retry count (3).
    mtu: u8,
    /// Max CM retries (4 bits), SRQ (1), extended transport type (3).
    retries: u8,
    primary: path::Raw,
    alternate: path::Raw,
    private_data: [u8; PRIVATE_DATA],
}

const SRQ: u8 = 0x08;

impl Req {
    /// The path MTU, if its encoding is valid.
    pub fn mtu(&self) -> Option<Mtu> {
        Mtu::from_number(self.path_mtu)
    }
}

impl Layout for Req {
    type Raw = Raw;
    const NAME: &'static str = "REQ";

    fn from_raw(raw: &Raw) -> Self {
        let (qpn, responder_resources) = split(raw.qpn);
        let (_, initiator_depth) = split(raw.eecn);
        let (_, service) = split(raw.remote_eecn);
        let (psn, retries) = split(raw.psn);
        Req {
            local_comm_id: raw.local_comm_id.get(),
            service: ServiceId(raw.service.get()),
            ca_guid: raw.ca_guid.get(),
            qkey: QKey(raw.qkey.get()),
            qpn: Qpn::new(qpn),
            responder_resources,
            initiator_depth,
            remote_response_timeout: service >> 3,
            transport: Transport::from_fields(low_bits(service >> 1, 2), low_bits(raw.retries, 3)),
            flow_control: service & 1 != 0,
            starting_psn: Psn::new(psn),
            local_response_timeout: retries >> 3,
            retry_count: low_bits(retries, 3),
            pkey: PKey(raw.pkey.get()),
            path_mtu: raw.mtu >> 4,
            rnr_retry_count: low_bits(raw.mtu, 3),
            max_cm_retries: raw.retries >> 4,
            srq: raw.retries & SRQ != 0,
            primary: Path::from_raw(&raw.primary),
            alternate: Path::from_raw(&raw.alternate),
            ece: Ece::of_vendor(raw.vendor_id.get()),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> Raw {
        let (service_type, extended) = self.transport.fields();
        let service =
            self.remote_response_timeout << 3 | service_type << 1 | u8::from(self.flow_control);
        let retries = self.local_response_timeout << 3 | low_bits(self.retry_count, 3);
        let srq = if self.srq { SRQ } else { 0 };
        Raw {
            local_comm_id: U32::new(self.local_comm_id),
            vendor_id: U32::new(self.ece.vendor()),
            service: U64::new(self.service.0),
            ca_guid: U64::new(self.ca_guid),
            reserved_2: U32::ZERO,
            qkey: U32::new(self.qkey.0),
            qpn: join(self.qpn.get(), self.responder_resources),
            eecn: join(0, self.initiator_depth),
            remote_eecn: join(0, service),
            psn: join(self.starting_psn.get(), retries),
            pkey: U16::new(self.pkey.0),
            mtu: self.path_mtu << 4 | low_bits(self.rnr_retry_count, 3),
            retries: self.max_cm_retries << 4 | srq | extended,
            primary: self.primary.to_raw(),
            alternate: self.alternate.to_raw(),
            private_data: self.private_data.0,
        }
    }
}
