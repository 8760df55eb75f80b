//! The base transport header, BTH: the first header of every packet (9.2).

use super::error::ParseError;
use super::opcode::Opcode;
use crate::ids::{PKey, Qpn};
use crate::psn::Psn;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// The opcode.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion raises an event (9.2).
    pub solicited: bool,
    /// Migration request: the sender's path is in MIGRATED. NICs always set it (17.2.8).
    pub mig_req: bool,
    /// Pad count: bytes after the payload that round its length up to a multiple of 4, 0 to 3
    /// (9.2).
    pub pad: u8,
    /// The partition key.
    pub pkey: PKey,
    /// Forward congestion notification. RoCEv2 uses the ECN bits of the IP header instead
    /// (A17.9.3).
    pub fecn: bool,
    /// Backward congestion notification: set in a CNP.
    pub becn: bool,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// The responder must acknowledge this packet (9.7).
    pub ack_req: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    opcode: u8,
    /// Solicited event, MigReq, pad count (2 bits), transport header version (4 bits).
    flags: u8,
    pkey: U16,
    /// FECN, BECN, 6 reserved bits, destination QP.
    dest_qp: U32,
    /// AckReq, 7 reserved bits, PSN.
    psn: U32,
}

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD: u8 = 0x30;
const PAD_SHIFT: u32 = 4;
const VERSION: u8 = 0x0f;
const FECN: u32 = 1 << 31;
const BECN: u32 = 1 << 30;
const ACK_REQ: u32 = 1 << 31;

/// Returns `bit` if `on`, else zero.
fn flag<T: Default>(on: bool, bit: T) -> T {
    if on { bit } else { T::default() }
}

impl Bth {
    /// The length of the BTH, in bytes.
    pub const LEN: usize = size_of::<Raw>();

    /// The transport header version; 0 is the only one (9.2).
    pub const TRANSPORT_VERSION: u8 = 0;

    /// The offset of the byte with FECN and BECN, which the ICRC does not cover (A17.3.3).
    pub const VARIANT_BYTE: usize = 4;

    /// Returns a header with defaults: the default partition, MigReq set (as NICs do), no pad.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// The length of this header and the extended headers behind it, in bytes.
    #[inline]
    pub(crate) fn headers_len(&self) -> usize {
        Self::LEN + self.opcode.info().headers_len
    }

    /// Reads the header from the start of `bytes`; returns it and the rest.
    ///
    /// # Errors
    /// [`ParseError`] when `bytes` are too short, the transport version is not 0, or the opcode is
    /// not in the table.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Ok((raw, rest)) = Raw::ref_from_prefix(bytes) else {
            return Err(ParseError::TooShort { have: bytes.len() });
        };
        let version = raw.flags & VERSION;
        if version != Self::TRANSPORT_VERSION {
            return Err(ParseError::TransportVersion(version));
        }
        let opcode = Opcode::from_u8(raw.opcode).ok_or(ParseError::ReservedOpcode(raw.opcode))?;
        let dest_qp = raw.dest_qp.get();
        let psn = raw.psn.get();
        let bth = Bth {
            opcode,
            solicited: raw.flags & SOLICITED != 0,
            mig_req: raw.flags & MIG_REQ != 0,
            pad: (raw.flags & PAD) >> PAD_SHIFT,
            pkey: PKey(raw.pkey.get()),
            fecn: dest_qp & FECN != 0,
            becn: dest_qp & BECN != 0,
            dest_qp: Qpn::new(dest_qp),
            ack_req: psn & ACK_REQ != 0,
            psn: Psn::new(psn),
        };
        Ok((bth, rest))
    }

    /// Writes the header to the start of `out`. Only the low two bits of `pad` are written.
    ///
    /// # Panics
    /// When `out` is shorter than [`Bth::LEN`].
    #[inline(always)]
    pub fn emit(&self, out: &mut [u8]) {
        let raw = Raw {
            opcode: self.opcode as u8,
            flags: flag(self.solicited, SOLICITED)
                | flag(self.mig_req, MIG_REQ)
                | ((self.pad << PAD_SHIFT) & PAD)
                | Self::TRANSPORT_VERSION,
            pkey: U16::new(self.pkey.0),
            dest_qp: U32::new(flag(self.fecn, FECN) | flag(self.becn, BECN) | self.dest_qp.get()),
            psn: U32::new(flag(self.ack_req, ACK_REQ) | self.psn.get()),
        };
        out[..Self::LEN].copy_from_slice(raw.as_bytes());
    }
}

/// Returns the destination queue pair of a packet without parsing the rest of it.
///
/// `None` when `bytes` are shorter than a BTH.
#[inline]
pub fn dest_qp(bytes: &[u8]) -> Option<Qpn> {
    let (raw, _) = Raw::ref_from_prefix(bytes).ok()?;
    Some(Qpn::new(raw.dest_qp.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The BTH of a CNP sent by a ConnectX-4 Lx (scapy's test/contrib/roce.uts).
    const CNP: [u8; 12] = [0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0];

    #[test]
    fn captured_cnp_has_becn_and_its_queue_pair() {
        let (bth, rest) = Bth::parse(&CNP).unwrap();
        assert!(rest.is_empty());
        assert_eq!(bth.opcode, Opcode::Cnp);
        assert!(bth.becn && !bth.fecn && !bth.ack_req && !bth.solicited && !bth.mig_req);
        assert_eq!(bth.pkey, PKey::DEFAULT);
        assert_eq!(bth.dest_qp, Qpn::new(0x118));
        assert_eq!(dest_qp(&CNP), Some(Qpn::new(0x118)));
        let mut out = [0xaa; 12];
        bth.emit(&mut out);
        assert_eq!(out, CNP);
    }

    #[test]
    fn each_flag_has_its_bit() {
        let bytes = [
            0x04, 0xf0, 0x80, 0x01, 0x80, 0xab, 0xcd, 0xef, 0x80, 0x12, 0x34, 0x56,
        ];
        let (bth, _) = Bth::parse(&bytes).unwrap();
        let expected = Bth {
            opcode: Opcode::RcSendOnly,
            solicited: true,
            mig_req: true,
            pad: 3,
            pkey: PKey(0x8001),
            fecn: true,
            becn: false,
            dest_qp: Qpn::new(0xab_cdef),
            ack_req: true,
            psn: Psn::new(0x12_3456),
        };
        assert_eq!(bth, expected);
        let mut out = [0; 12];
        expected.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn reserved_bits_are_ignored_and_sent_as_zero() {
        let bytes = [0x04, 0, 0xff, 0xff, 0x3f, 0, 0, 7, 0x7f, 0, 0, 9];
        let (bth, _) = Bth::parse(&bytes).unwrap();
        let mut out = [0; 12];
        bth.emit(&mut out);
        assert_eq!((out[4], out[8]), (0, 0));
    }

    #[test]
    fn short_input_has_no_destination_queue_pair() {
        assert_eq!(dest_qp(&CNP[..11]), None);
        assert_eq!(
            Bth::parse(&CNP[..11]),
            Err(ParseError::TooShort { have: 11 })
        );
    }
}
