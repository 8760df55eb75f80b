//! Datagrams as inputs describe them.

use arbitrary::Arbitrary;
use urxe_proto::cm::wire::MadHeader;
use urxe_proto::icrc::{FlowIcrc, IpId};
use urxe_proto::ids::Qpn;
use urxe_proto::wire::{Bth, Deth, Layout};

/// A datagram: bytes, and header fields that replace some of them.
#[derive(Arbitrary, Debug)]
pub(super) struct Packet {
    bytes: Vec<u8>,
    qpn: Option<Target>,
    /// The attribute of a MAD.
    attribute: Option<u8>,
    /// The first bytes of the two communication IDs.
    ids: Option<(u8, u8)>,
    pub(super) sealed: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Target {
    Slot(u8, u16),
    /// The slot of the first or the second process.
    Known(bool, u16),
    Gsi,
    Multicast,
}

/// The offsets of the fields that the steering program reads.
pub(super) const QPN: usize = 5;

pub(super) const MAD: usize = Bth::LEN + Deth::LEN;

pub(super) const ATTRIBUTE: usize = MAD + 16;

pub(super) const FIRST_ID: usize = MAD + MadHeader::LEN;

pub(super) const SECOND_ID: usize = FIRST_ID + 4;

impl Packet {
    /// Returns the bytes, with the ICRC of `flow` if it is sealed. The two processes have the slots
    /// `own` and `other`.
    pub(super) fn to_bytes(&self, own: u8, other: u8, flow: &FlowIcrc) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.truncate(1000);
        let mut put = |at: usize, piece: &[u8]| {
            if bytes.len() < at + piece.len() {
                bytes.resize(at + piece.len(), 0);
            }
            bytes[at..at + piece.len()].copy_from_slice(piece);
        };
        if let Some(target) = self.qpn {
            let qpn = match target {
                Target::Slot(slot, low) => u32::from(slot) << urxe_net::QPN_BITS | u32::from(low),
                Target::Known(second, low) => {
                    u32::from(if second { other } else { own }) << urxe_net::QPN_BITS
                        | u32::from(low)
                }
                Target::Gsi => Qpn::GSI.get(),
                Target::Multicast => Qpn::MULTICAST.get(),
            };
            put(QPN, &qpn.to_be_bytes()[1..]);
        }
        if let Some(number) = self.attribute {
            put(ATTRIBUTE, &u16::from(number % 0x20).to_be_bytes());
        }
        if let Some((first, second)) = self.ids {
            put(FIRST_ID, &[first]);
            put(SECOND_ID, &[second]);
        }
        if self.sealed && bytes.len() >= Bth::LEN {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            let id = IpId {
                id: 0,
                dont_fragment: true,
            };
            let icrc = flow.compute(id, &bytes);
            bytes.extend_from_slice(&icrc);
        }
        bytes
    }
}
