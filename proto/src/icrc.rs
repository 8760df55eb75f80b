//! The invariant CRC that ends every packet (A17.3.3, 7.8.1).
//!
//! It is the CRC-32 of Ethernet over 8 bytes of ones (the local route header that InfiniBand has
//! and RoCE has not), the IP and UDP headers, and the packet. What may change on the way is ones in
//! the sum: IPv4's type of service, time to live and header checksum; IPv6's traffic class, flow
//! label and hop limit; the UDP checksum; and the byte of the BTH that holds FECN and BECN.
//!
//! So it covers headers that a UDP socket does not show. Addresses, ports and lengths are known
//! there all the same, but the IPv4 identification and the «don't fragment» bit of a received
//! packet are not. They need not be: a CRC is linear. The difference between the ICRC that arrived
//! and the one computed for a guess is what the difference between the true and the guessed
//! identification alone would give, carried from there to the end of the packet; and carrying is
//! multiplication by a power of x, which can be undone. If what comes out is a difference of
//! identifications (17 bits of 32), that tells the true one; if not, the packet is damaged.
//!
//! # How sure a check is
//! With a right guess, as sure as any CRC-32. Otherwise 17 of its 32 bits are spent on finding the
//! identification: a packet damaged at random passes with a probability of 2^-15, and of the single
//! wrong bits two pass, in bytes 173 and 1834 of a packet. Where it is known whether the sender sets
//! «don't fragment» - it does so always or never - the probability is 2^-16, and any single wrong
//! bit is found, up to the longest packet that RoCE has.

mod polynomial;

use self::polynomial::{Table, back_steps, multiply, tables};
use crate::wire::Bth;
use crc32fast::Hasher;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The ICRC's length on the wire, in bytes.
pub const LEN: usize = 4;

/// The addresses and ports of a packet, from its sender's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flow {
    /// Over IPv4.
    V4 {
        /// The sender's address.
        src: Ipv4Addr,
        /// The receiver's address.
        dst: Ipv4Addr,
        /// The sender's UDP port.
        src_port: u16,
        /// The receiver's UDP port: 4791.
        dst_port: u16,
    },
    /// Over IPv6.
    V6 {
        /// The sender's address.
        src: Ipv6Addr,
        /// The receiver's address.
        dst: Ipv6Addr,
        /// The sender's UDP port.
        src_port: u16,
        /// The receiver's UDP port: 4791.
        dst_port: u16,
    },
}

impl Flow {
    /// The flow between two socket addresses; `None` when one is IPv4 and the other IPv6. An IPv4
    /// address in its mapped form is IPv4: that is how an IPv6 socket shows what goes over IPv4.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Option<Flow> {
        use std::net::IpAddr::{V4, V6};
        let (src_port, dst_port) = (src.port(), dst.port());
        match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (V4(src), V4(dst)) => Some(Flow::V4 {
                src,
                dst,
                src_port,
                dst_port,
            }),
            (V6(src), V6(dst)) => Some(Flow::V6 {
                src,
                dst,
                src_port,
                dst_port,
            }),
            _ => None,
        }
    }
}

/// What of an IPv4 header the ICRC covers and a UDP socket does not show.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct IpId {
    /// The identification.
    pub id: u16,
    /// The «don't fragment» bit.
    pub dont_fragment: bool,
}

/// Why a datagram is not a packet with its ICRC. It is to be dropped (9.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IcrcError {
    /// It cannot hold a packet at all.
    #[error(
        "a datagram of {0} bytes is no packet: those have a BTH and an ICRC, 16 bytes, or more, \
         in multiples of 4"
    )]
    Length(usize),
    /// The ICRC is not that of the packet.
    #[error("the ICRC is {received:#010x} and should be {computed:#010x}: the packet was damaged")]
    Mismatch {
        /// What the datagram ends with.
        received: u32,
        /// What it should end with; for IPv4, if the guess was right.
        computed: u32,
    },
}

/// The ICRC of `packet`, in the order of bytes on the wire.
///
/// `packet` goes from the BTH to the end of the pad; it is at least as long as a BTH and at most as
/// long as UDP allows. Over IPv6, `ip_id` and `dont_fragment` do not matter. For many packets of a
/// flow, [`FlowIcrc`] is faster.
///
/// # Panics
/// When `packet` is shorter than a BTH.
#[inline]
pub fn compute(flow: &Flow, ip_id: u16, dont_fragment: bool, packet: &[u8]) -> [u8; LEN] {
    let id = IpId {
        id: ip_id,
        dont_fragment,
    };
    FlowIcrc::new(flow).compute(id, packet)
}

/// Checks the ICRC at the end of `datagram`, a whole UDP payload; see [`FlowIcrc::verify`].
///
/// # Errors
/// When it is not a packet with its ICRC.
#[inline]
pub fn verify(flow: &Flow, datagram: &[u8], guess: IpId) -> Result<IpId, IcrcError> {
    FlowIcrc::new(flow).verify(datagram, guess)
}

/// The part of an ICRC that all packets of a flow share.
///
/// Lengths, identification and BTH lie at fixed distances from the end of the BTH. What each of
/// their bytes does to the CRC there is therefore one look into a table, whatever the other bytes
/// are, and these looks do not wait for one another as the steps of a CRC do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowIcrc {
    /// The CRC at the end of a BTH of zeroes, for lengths and identification of zero.
    base: u32,
    ip: IpVersion,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IpVersion {
    V4,
    V6,
}

/// Ones in place of the local route header.
const LRH_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// IPv4's «don't fragment» in the first byte of its flags and fragment offset.
const DONT_FRAGMENT: u8 = 0x40;

/// Where in their headers the fields lie that differ between the packets of a flow.
const IPV4_TOTAL_LENGTH: usize = 2;
const IPV4_ID: usize = 4;
const IPV4_FLAGS: usize = 6;
const IPV6_PAYLOAD_LENGTH: usize = 4;
const UDP_LENGTH: usize = 4;

/// The longest UDP payload over IPv4. Over IPv6 20 more bytes would fit, which no packet needs.
const MAX_DATAGRAM: usize = u16::MAX as usize - UDP_LEN - IPV4_LEN;

impl FlowIcrc {
    /// What the packets of `flow` share.
    pub fn new(flow: &Flow) -> Self {
        let mut bth = [0; Bth::LEN];
        bth[Bth::VARIANT_BYTE] = 0xff;
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; LRH_LEN]);
        let ip = match flow {
            Flow::V4 {
                src,
                dst,
                src_port,
                dst_port,
            } => {
                let mut header = [0; IPV4_LEN];
                header[0] = 0x45; // version 4, 5 words
                header[1] = 0xff; // type of service
                header[8] = 0xff; // time to live
                header[9] = PROTOCOL_UDP;
                header[10..12].fill(0xff); // header checksum
                header[12..16].copy_from_slice(&src.octets());
                header[16..].copy_from_slice(&dst.octets());
                hasher.update(&header);
                hasher.update(&udp_header(*src_port, *dst_port));
                IpVersion::V4
            }
            Flow::V6 {
                src,
                dst,
                src_port,
                dst_port,
            } => {
                let mut header = [0; IPV6_LEN];
                header[0] = 0x6f; // version 6; the rest of the word: traffic class, flow label
                header[1..4].fill(0xff);
                header[6] = PROTOCOL_UDP;
                header[7] = 0xff; // hop limit
                header[8..24].copy_from_slice(&src.octets());
                header[24..].copy_from_slice(&dst.octets());
                hasher.update(&header);
                hasher.update(&udp_header(*src_port, *dst_port));
                IpVersion::V6
            }
        };
        hasher.update(&bth);
        FlowIcrc {
            base: hasher.finalize(),
            ip,
        }
    }

    /// The ICRC of `packet`, in the order of bytes on the wire; see [`compute`].
    ///
    /// # Panics
    /// When `packet` is shorter than a BTH.
    #[inline]
    pub fn compute(&self, id: IpId, packet: &[u8]) -> [u8; LEN] {
        self.crc(id, packet).to_le_bytes()
    }

    /// Checks the ICRC at the end of `datagram`, a whole UDP payload, of a sender of which nothing
    /// is known.
    ///
    /// Over IPv4, `guess` is what the identification may be; the one before, or the one after that,
    /// of the same sender is a good guess. The true one is returned: a wrong guess costs little
    /// time but half of the check's certainty (see [the module](self)). Over IPv6 there is none,
    /// and the guess is returned.
    ///
    /// # Errors
    /// When the length is not that of a packet, or no identification gives this ICRC.
    #[inline]
    pub fn verify(&self, datagram: &[u8], guess: IpId) -> Result<IpId, IcrcError> {
        self.verify_within(datagram, guess, DONT_FRAGMENT)
    }

    /// The same, of a sender of which `guess` tells for sure whether it sets «don't fragment». As
    /// what was learnt from one packet may have been learnt from a damaged one, it should be
    /// forgotten when this fails.
    ///
    /// # Errors
    /// When the length is not that of a packet, or no identification gives this ICRC.
    #[inline]
    pub fn verify_known_sender(&self, datagram: &[u8], guess: IpId) -> Result<IpId, IcrcError> {
        self.verify_within(datagram, guess, 0)
    }

    /// Of the flags, those in `unknown_flags` may differ from the guess.
    #[inline]
    fn verify_within(
        &self,
        datagram: &[u8],
        guess: IpId,
        unknown_flags: u8,
    ) -> Result<IpId, IcrcError> {
        let len = datagram.len();
        if !len.is_multiple_of(4) || !(Bth::LEN + LEN..=MAX_DATAGRAM).contains(&len) {
            return Err(IcrcError::Length(len));
        }
        let Some((packet, icrc)) = datagram.split_last_chunk::<LEN>() else {
            return Err(IcrcError::Length(len));
        };
        let received = u32::from_le_bytes(*icrc);
        let computed = self.crc(guess, packet);
        if received == computed {
            return Ok(guess);
        }
        match self.ip {
            IpVersion::V4 => recover_id(received ^ computed, packet.len(), guess, unknown_flags),
            IpVersion::V6 => None,
        }
        .ok_or(IcrcError::Mismatch { received, computed })
    }

    #[inline]
    fn crc(&self, id: IpId, packet: &[u8]) -> u32 {
        let (bth, rest) = packet
            .split_first_chunk()
            .expect("a packet is at least as long as a BTH");
        let start = self.base ^ self.lengths(packet.len()) ^ self.id(id) ^ self.bth(bth);
        let mut hasher = Hasher::new_with_initial(start);
        hasher.update(rest);
        hasher.finalize()
    }

    /// What the lengths in the IP and UDP headers add.
    #[inline]
    fn lengths(&self, packet_len: usize) -> u32 {
        let udp = (UDP_LEN + packet_len + LEN) as u16;
        let [u1, u0] = udp.to_be_bytes();
        match self.ip {
            IpVersion::V4 => {
                let [t1, t0] = udp.wrapping_add(IPV4_LEN as u16).to_be_bytes();
                at(&IPV4_TOTAL_LENGTH_TABLES, 0, t1)
                    ^ at(&IPV4_TOTAL_LENGTH_TABLES, 1, t0)
                    ^ at(&UDP_LENGTH_TABLES, 0, u1)
                    ^ at(&UDP_LENGTH_TABLES, 1, u0)
            }
            IpVersion::V6 => {
                at(&IPV6_PAYLOAD_LENGTH_TABLES, 0, u1)
                    ^ at(&IPV6_PAYLOAD_LENGTH_TABLES, 1, u0)
                    ^ at(&UDP_LENGTH_TABLES, 0, u1)
                    ^ at(&UDP_LENGTH_TABLES, 1, u0)
            }
        }
    }

    /// What the identification adds.
    #[inline]
    fn id(&self, id: IpId) -> u32 {
        match self.ip {
            IpVersion::V4 => {
                let [i1, i0] = id.id.to_be_bytes();
                let flags = if id.dont_fragment { DONT_FRAGMENT } else { 0 };
                at(&IPV4_ID_TABLES, 0, i1)
                    ^ at(&IPV4_ID_TABLES, 1, i0)
                    ^ at(&IPV4_FLAGS_TABLE, 0, flags)
            }
            IpVersion::V6 => 0,
        }
    }

    /// What the BTH adds, its variant byte left out.
    #[inline]
    fn bth(&self, bth: &[u8; Bth::LEN]) -> u32 {
        let mut crc = 0;
        for (i, &byte) in bth.iter().enumerate() {
            if i != Bth::VARIANT_BYTE {
                crc ^= at(&BTH_TABLES, i, byte);
            }
        }
        crc
    }
}

/// A UDP header whose length is not filled in.
fn udp_header(src_port: u16, dst_port: u16) -> [u8; UDP_LEN] {
    let mut header = [0; UDP_LEN];
    header[..2].copy_from_slice(&src_port.to_be_bytes());
    header[2..4].copy_from_slice(&dst_port.to_be_bytes());
    header[6..].fill(0xff); // checksum
    header
}

/// Finds the identification for which the ICRC is right, if there is one. `difference` is between
/// the ICRC that arrived and the one for `guess`, of a packet of `len` bytes, a multiple of 4. Of the
/// flags, those in `unknown_flags` may differ from the guess.
fn recover_id(difference: u32, len: usize, guess: IpId, unknown_flags: u8) -> Option<IpId> {
    // The identification and the flags are the second word of the IPv4 header. A word that goes
    // into a CRC is multiplied by x^32, and by x^32 again for each word after it: the three left of
    // the IPv4 header, the two of UDP, and the packet.
    let words = 1 + (IPV4_LEN - IPV4_ID - 4 + UDP_LEN + len) / 4;
    let back = multiply(
        BACK_WORDS[words % BACK_WORDS.len()],
        BACK_MANY[words / BACK_WORDS.len()],
    );
    let [i1, i0, flags, offset] = multiply(difference, back).to_le_bytes();
    // Nobody sends fragments: of the rest of the word, all else must be the same.
    if offset != 0 || flags & !unknown_flags != 0 {
        return None;
    }
    Some(IpId {
        id: guess.id ^ u16::from_be_bytes([i1, i0]),
        dont_fragment: guess.dont_fragment ^ (flags != 0),
    })
}

/// How many bytes there are from the start of each header to the end of the BTH.
const FROM_BTH: usize = Bth::LEN;
const FROM_UDP: usize = UDP_LEN + FROM_BTH;
const FROM_IPV4: usize = IPV4_LEN + FROM_UDP;
const FROM_IPV6: usize = IPV6_LEN + FROM_UDP;

/// Back over this many words of 32 bits.
static BACK_WORDS: [u32; 256] = back_steps(32);
/// Back over this many times 256 words, to the start of the longest packet.
static BACK_MANY: [u32; u16::MAX as usize / 4 / 256 + 1] = back_steps(32 * 256);

static BTH_TABLES: [Table; Bth::LEN] = tables(0);
static UDP_LENGTH_TABLES: [Table; 2] = tables(FROM_UDP - UDP_LENGTH - 2);
static IPV4_TOTAL_LENGTH_TABLES: [Table; 2] = tables(FROM_IPV4 - IPV4_TOTAL_LENGTH - 2);
static IPV4_ID_TABLES: [Table; 2] = tables(FROM_IPV4 - IPV4_ID - 2);
static IPV6_PAYLOAD_LENGTH_TABLES: [Table; 2] = tables(FROM_IPV6 - IPV6_PAYLOAD_LENGTH - 2);
static IPV4_FLAGS_TABLE: [Table; 1] = tables(FROM_IPV4 - IPV4_FLAGS - 1);

/// What byte `i` of a field adds.
#[inline]
fn at(tables: &[Table], i: usize, byte: u8) -> u32 {
    tables[i][usize::from(byte)]
}

#[cfg(test)]
mod tests;
