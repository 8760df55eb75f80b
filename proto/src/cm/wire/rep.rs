//! REP: the acceptance of a REQ (12.6.8).

use super::bits::{join, low_bits, split};
use super::ece::Ece;
use super::private_data::PrivateData;
use crate::ids::{QKey, Qpn};
use crate::psn::Psn;
use crate::wire::Layout;
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of private data in a REP.
pub const PRIVATE_DATA: usize = 196;

/// A reply to a request for communication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// The queue key; for reliable datagrams only.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's end-to-end context; over XRC the receiving queue pair (A14.5.2).
    pub eecn: u32,
    /// The first PSN that the receiver must send (12.7.31).
    pub starting_psn: Psn,
    /// The most READs and atomics that the sender accepts at once.
    pub responder_resources: u8,
    /// The most READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// The sender's ACK delay: 4.096 us x 2^n, n up to 31 (12.7.33).
    pub target_ack_delay: u8,
    /// The failover status; 0 means that the alternate path is accepted.
    pub failover_accepted: u8,
    /// Whether the sender's queue pair implements end-to-end flow control.
    pub flow_control: bool,
    /// The receiver's retry count after an RNR NAK: 0 to 6; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The GUID of the sender's channel adapter.
    pub ca_guid: u64,
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
    remote_comm_id: U32,
    qkey: U32,
    /// Local QPN (24 bits), the vendor ID's first byte.
    qpn: U32,
    /// Local EECN (24 bits), the vendor ID's second byte.
    eecn: U32,
    /// Starting PSN (24 bits), the vendor ID's last byte.
    psn: U32,
    responder_resources: u8,
    initiator_depth: u8,
    /// Target ACK delay (5 bits), failover accepted (2), end-to-end flow control (1).
    ack_delay: u8,
    /// RNR retry count (3 bits), SRQ (1), reserved (4).
    rnr_retry: u8,
    ca_guid: U64,
    private_data: [u8; PRIVATE_DATA],
}

const SRQ: u8 = 0x10;

impl Layout for Rep {
    type Raw = Raw;
    const NAME: &'static str = "REP";

    fn from_raw(raw: &Raw) -> Self {
        let ((qpn, high), (eecn, middle)) = (split(raw.qpn), split(raw.eecn));
        let (psn, low) = split(raw.psn);
        Rep {
            local_comm_id: raw.local_comm_id.get(),
            remote_comm_id: raw.remote_comm_id.get(),
            qkey: QKey(raw.qkey.get()),
            qpn: Qpn::new(qpn),
            eecn,
            starting_psn: Psn::new(psn),
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            target_ack_delay: raw.ack_delay >> 3,
            failover_accepted: low_bits(raw.ack_delay >> 1, 2),
            flow_control: raw.ack_delay & 1 != 0,
            rnr_retry_count: raw.rnr_retry >> 5,
            srq: raw.rnr_retry & SRQ != 0,
            ca_guid: raw.ca_guid.get(),
            ece: Ece::of_vendor(u32::from_be_bytes([0, high, middle, low])),
            private_data: PrivateData(raw.private_data),
        }
    }

    fn to_raw(&self) -> Raw {
        let [_, high, middle, low] = self.ece.vendor().to_be_bytes();
        Raw {
            local_comm_id: U32::new(self.local_comm_id),
            remote_comm_id: U32::new(self.remote_comm_id),
            qkey: U32::new(self.qkey.0),
            qpn: join(self.qpn.get(), high),
            eecn: join(self.eecn, middle),
            psn: join(self.starting_psn.get(), low),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            ack_delay: self.target_ack_delay << 3
                | low_bits(self.failover_accepted, 2) << 1
                | u8::from(self.flow_control),
            rnr_retry: self.rnr_retry_count << 5 | if self.srq { SRQ } else { 0 },
            ca_guid: U64::new(self.ca_guid),
            private_data: self.private_data.0,
        }
    }
}
