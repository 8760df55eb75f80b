//! The path of a connection: the primary path of a REQ, and alternate paths (12.7.12 to 12.7.34).

use super::bits::low_bits;
use crate::ids::Gid;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The permissive LID, for paths through a router and for RoCE (4.1.3).
pub const LID_PERMISSIVE: u16 = 0xffff;

/// A path, from the sender's view.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Path {
    /// The sender's LID. 0 in an alternate path means that there is none.
    pub local_lid: u16,
    /// The receiver's LID.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The static rate, 6 bits.
    pub packet_rate: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The service level, 4 bits.
    pub sl: u8,
    /// Whether the path stays within the subnet.
    pub subnet_local: bool,
    /// The sender's ACK timeout: 4.096 us x 2^n, n up to 31.
    pub local_ack_timeout: u8,
}

/// The layout on the wire in a REQ.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// Flow label (20 bits), reserved (6), packet rate (6).
    flow_label: U32,
    traffic_class: u8,
    hop_limit: u8,
    /// Service level (4 bits), subnet local (1), reserved (3).
    sl: u8,
    /// Local ACK timeout (5 bits), reserved (3).
    ack_timeout: u8,
}

/// The layout on the wire in a LAP; its last fields are in another order.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LapRaw {
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// Flow label (20 bits), reserved (4), traffic class (8).
    flow_label: U32,
    hop_limit: u8,
    /// Reserved (2 bits), packet rate (6).
    packet_rate: u8,
    /// Service level (4 bits), subnet local (1), reserved (3).
    sl: u8,
    /// Local ACK timeout (5 bits), reserved (3).
    ack_timeout: u8,
}

const RATE_BITS: u32 = 6;
const SUBNET_LOCAL: u8 = 0x08;

impl Path {
    pub(super) fn from_raw(raw: &Raw) -> Self {
        Path {
            local_lid: raw.local_lid.get(),
            remote_lid: raw.remote_lid.get(),
            local_gid: Gid(raw.local_gid),
            remote_gid: Gid(raw.remote_gid),
            flow_label: raw.flow_label.get() >> 12,
            packet_rate: low_bits(raw.flow_label.get() as u8, RATE_BITS),
            traffic_class: raw.traffic_class,
            hop_limit: raw.hop_limit,
            sl: raw.sl >> 4,
            subnet_local: raw.sl & SUBNET_LOCAL != 0,
            local_ack_timeout: raw.ack_timeout >> 3,
        }
    }

    pub(super) fn to_raw(self) -> Raw {
        let rate = low_bits(self.packet_rate, RATE_BITS);
        Raw {
            local_lid: U16::new(self.local_lid),
            remote_lid: U16::new(self.remote_lid),
            local_gid: self.local_gid.0,
            remote_gid: self.remote_gid.0,
            flow_label: U32::new(self.flow_label << 12 | u32::from(rate)),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl_byte(),
            ack_timeout: self.local_ack_timeout << 3,
        }
    }

    pub(super) fn from_lap_raw(raw: &LapRaw) -> Self {
        Path {
            local_lid: raw.local_lid.get(),
            remote_lid: raw.remote_lid.get(),
            local_gid: Gid(raw.local_gid),
            remote_gid: Gid(raw.remote_gid),
            flow_label: raw.flow_label.get() >> 12,
            packet_rate: low_bits(raw.packet_rate, RATE_BITS),
            traffic_class: raw.flow_label.get() as u8,
            hop_limit: raw.hop_limit,
            sl: raw.sl >> 4,
            subnet_local: raw.sl & SUBNET_LOCAL != 0,
            local_ack_timeout: raw.ack_timeout >> 3,
        }
    }

    pub(super) fn to_lap_raw(self) -> LapRaw {
        LapRaw {
            local_lid: U16::new(self.local_lid),
            remote_lid: U16::new(self.remote_lid),
            local_gid: self.local_gid.0,
            remote_gid: self.remote_gid.0,
            flow_label: U32::new(self.flow_label << 12 | u32::from(self.traffic_class)),
            hop_limit: self.hop_limit,
            packet_rate: low_bits(self.packet_rate, RATE_BITS),
            sl: self.sl_byte(),
            ack_timeout: self.local_ack_timeout << 3,
        }
    }

    fn sl_byte(self) -> u8 {
        self.sl << 4 | if self.subnet_local { SUBNET_LOCAL } else { 0 }
    }
}
