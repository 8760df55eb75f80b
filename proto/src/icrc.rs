//! The invariant CRC at the end of every packet (A17.3.3, 7.8.1).
//!
//! The ICRC is the CRC-32 of Ethernet over 8 bytes of ones, the IP and UDP headers, and the packet.
//! The ones stand for InfiniBand's local route header, which RoCE lacks. Fields that routers may
//! change are replaced by ones: IPv4's type of service, time to live and header checksum; IPv6's
//! traffic class, flow label and hop limit; the UDP checksum; and the byte of the BTH with FECN and
//! BECN.
//!
//! # Unknown IPv4 identification
//! The ICRC thus covers fields that a UDP socket does not report. Addresses, ports and lengths are
//! known, but the IPv4 identification and the «don't fragment» bit of a received packet are not.
//! They can be computed, because a CRC is linear. Let the receiver compute the ICRC with a guessed
//! identification. The difference to the received ICRC depends only on the difference between the
//! true and the guessed identification, multiplied by a power of x for the bytes that follow. That
//! multiplication can be inverted. If the result differs from zero only in the 17 bits of
//! identification and flag, it yields the true identification. Otherwise the packet is damaged.
//!
//! # Strength of the check
//! With a correct guess the check is as strong as any CRC-32. Otherwise 17 of its 32 bits are used
//! to find the identification. A randomly damaged packet then passes with probability 2^-15, and
//! two single-bit errors pass, in bytes 173 and 1834 of a packet. If the sender is known to set
//! «don't fragment» always or never, the probability is 2^-16, and every single-bit error is
//! detected up to the longest packet of RoCE.

mod polynomial;

use self::polynomial::{Table, inverse_powers, multiply, tables};
use crate::wire::Bth;
use crc32fast::Hasher;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The length of the ICRC, in bytes.
pub const LEN: usize = 4;

/// The addresses and ports of a packet, as the sender fills them in.
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
    /// Returns the flow between two socket addresses; `None` if their address families differ.
    ///
    /// An IPv4-mapped IPv6 address counts as IPv4: an IPv6 socket reports IPv4 peers that way.
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

/// The IPv4 header fields that the ICRC covers and a UDP socket does not report.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct IpId {
    /// The identification.
    pub id: u16,
    /// The «don't fragment» bit.
    pub dont_fragment: bool,
}

impl IpId {
    /// That of the first packet of a GSO batch, as Linux sends it.
    const FIRST: IpId = IpId {
        id: 0,
        dont_fragment: true,
    };
}

/// Why the ICRC of a datagram is not valid. The datagram must be dropped (9.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IcrcError {
    /// The length is not that of a packet.
    #[error(
        "a datagram of {0} bytes is not a packet: a packet has at least 16 bytes (BTH and ICRC), \
         and a multiple of 4"
    )]
    Length(usize),
    /// The ICRC does not match the packet.
    #[error("the ICRC is {received:#010x}, expected {computed:#010x}: the packet is damaged")]
    Mismatch {
        /// The ICRC in the datagram.
        received: u32,
        /// The expected ICRC; for IPv4, under the guessed identification.
        computed: u32,
    },
}

/// Returns the ICRC of `packet`, in wire order.
///
/// `packet` ranges from the BTH to the end of the pad. It is at least as long as a BTH and at most
/// as long as UDP allows. Over IPv6, `ip_id` and `dont_fragment` are ignored. For many packets of
/// one flow, [`FlowIcrc`] is faster.
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
/// [`IcrcError`] when the length or the ICRC is wrong.
#[inline]
pub fn verify(flow: &Flow, datagram: &[u8], guess: IpId) -> Result<IpId, IcrcError> {
    FlowIcrc::new(flow).verify(datagram, guess)
}

/// The part of an ICRC that all packets of a flow share.
///
/// Lengths, identification and BTH are at fixed distances from the end of the BTH. The contribution
/// of each of their bytes to the CRC there is therefore one table lookup, independent of the other
/// bytes. Unlike the steps of a CRC, these lookups do not depend on each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowIcrc {
    /// The CRC at the end of an all-zero BTH, with lengths and identification of zero.
    base: u32,
    ip: IpVersion,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IpVersion {
    V4,
    V6,
}

/// The local route header, replaced by ones.
const LRH_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// IPv4's «don't fragment» flag, in the first byte of flags and fragment offset.
const DONT_FRAGMENT: u8 = 0x40;

/// Offsets of the header fields that differ between packets of a flow.
const IPV4_TOTAL_LENGTH: usize = 2;
const IPV4_ID: usize = 4;
const IPV4_FLAGS: usize = 6;
const IPV6_PAYLOAD_LENGTH: usize = 4;
const UDP_LENGTH: usize = 4;

/// The longest UDP payload over IPv4. IPv6 would allow 20 bytes more, which no packet needs.
const MAX_DATAGRAM: usize = u16::MAX as usize - UDP_LEN - IPV4_LEN;

impl FlowIcrc {
    /// Computes the part that all packets of `flow` share.
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

    /// Returns the ICRC of `packet`, in wire order; see [`compute`].
    ///
    /// # Panics
    /// When `packet` is shorter than a BTH.
    #[inline]
    pub fn compute(&self, id: IpId, packet: &[u8]) -> [u8; LEN] {
        self.crc(id, packet).to_le_bytes()
    }

    /// Checks the ICRC at the end of `datagram`, a whole UDP payload from an unknown sender.
    ///
    /// Over IPv4, `guess` is the presumed identification, for example the last one of the same
    /// sender, or the one after it. The true one is returned. A wrong guess costs little time, but
    /// halves the strength of the check (see [the module](self)). Over IPv6 there is no
    /// identification; `guess` is returned.
    ///
    /// # Errors
    /// [`IcrcError`] when the length is not that of a packet, or no identification yields this
    /// ICRC.
    #[inline]
    pub fn verify(&self, datagram: &[u8], guess: IpId) -> Result<IpId, IcrcError> {
        self.verify_within(datagram, guess, DONT_FRAGMENT)
    }

    /// Like [`Self::verify`], for a sender whose «don't fragment» flag is known to be that of
    /// `guess`.
    ///
    /// What was learnt from a sender's packet may come from a damaged packet. Callers should
    /// discard it when this check fails.
    ///
    /// # Errors
    /// [`IcrcError`] when the length is not that of a packet, or no identification yields this
    /// ICRC.
    #[inline]
    pub fn verify_known_sender(&self, datagram: &[u8], guess: IpId) -> Result<IpId, IcrcError> {
        self.verify_within(datagram, guess, 0)
    }

    /// Verifies the ICRC; only the flags in `unknown_flags` may differ from the guess.
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
        if let (words, []) = rest.as_chunks()
            && words.len() <= SHORT
        {
            return update_short(start, words);
        }
        let mut hasher = Hasher::new_with_initial(start);
        hasher.update(rest);
        hasher.finalize()
    }

    /// The contribution of the length fields of the IP and UDP headers.
    #[inline]
    fn lengths(&self, packet_len: usize) -> u32 {
        let udp = (UDP_LEN + packet_len + LEN) as u16;
        let [u1, u0] = udp.to_be_bytes();
        match self.ip {
            IpVersion::V4 => {
                let [t1, t0] = udp.wrapping_add(IPV4_LEN as u16).to_be_bytes();
                lookup(&IPV4_TOTAL_LENGTH_TABLES, 0, t1)
                    ^ lookup(&IPV4_TOTAL_LENGTH_TABLES, 1, t0)
                    ^ lookup(&UDP_LENGTH_TABLES, 0, u1)
                    ^ lookup(&UDP_LENGTH_TABLES, 1, u0)
            }
            IpVersion::V6 => {
                lookup(&IPV6_PAYLOAD_LENGTH_TABLES, 0, u1)
                    ^ lookup(&IPV6_PAYLOAD_LENGTH_TABLES, 1, u0)
                    ^ lookup(&UDP_LENGTH_TABLES, 0, u1)
                    ^ lookup(&UDP_LENGTH_TABLES, 1, u0)
            }
        }
    }

    /// The contribution of the IPv4 identification.
    #[inline]
    fn id(&self, id: IpId) -> u32 {
        match self.ip {
            // Most packets are the first of a batch, or a batch of their own.
            IpVersion::V4 if id == IpId::FIRST => FIRST_ID,
            IpVersion::V4 => {
                let [i1, i0] = id.id.to_be_bytes();
                let flags = if id.dont_fragment { DONT_FRAGMENT } else { 0 };
                lookup(&IPV4_ID_TABLES, 0, i1)
                    ^ lookup(&IPV4_ID_TABLES, 1, i0)
                    ^ lookup(&IPV4_FLAGS_TABLE, 0, flags)
            }
            IpVersion::V6 => 0,
        }
    }

    /// The contribution of the BTH, without its variant byte.
    #[inline]
    fn bth(&self, bth: &[u8; Bth::LEN]) -> u32 {
        let mut crc = 0;
        for (i, &byte) in bth.iter().enumerate() {
            if i != Bth::VARIANT_BYTE {
                crc ^= lookup(&BTH_TABLES, i, byte);
            }
        }
        crc
    }
}

/// The most words after a BTH for which [`update_short`] is used: those of an ACK or a READ
/// request. For these, choosing the implementation for the processor takes longer than the CRC
/// itself.
const SHORT: usize = 4;

/// Returns `crc` with `words` appended.
#[inline]
fn update_short(crc: u32, words: &[[u8; 4]]) -> u32 {
    // The tables of the last four bytes of a BTH are those of the last four bytes of any field.
    const LAST: usize = Bth::LEN - 4;
    !words.iter().fold(!crc, |crc, &word| {
        let bytes = (crc ^ u32::from_le_bytes(word)).to_le_bytes();
        (bytes.iter().enumerate()).fold(0, |crc, (i, &byte)| {
            crc ^ lookup(&BTH_TABLES, LAST + i, byte)
        })
    })
}

/// Returns a UDP header with a length of 0 and a masked checksum.
fn udp_header(src_port: u16, dst_port: u16) -> [u8; UDP_LEN] {
    let mut header = [0; UDP_LEN];
    header[..2].copy_from_slice(&src_port.to_be_bytes());
    header[2..4].copy_from_slice(&dst_port.to_be_bytes());
    header[6..].fill(0xff); // checksum
    header
}

/// Finds the identification that makes the ICRC valid, if there is one.
///
/// `difference` is between the received ICRC and the one for `guess`, of a packet of `len` bytes, a
/// multiple of 4. Only the flags in `unknown_flags` may differ from the guess.
fn recover_id(difference: u32, len: usize, guess: IpId, unknown_flags: u8) -> Option<IpId> {
    // Identification and flags are in the second word of the IPv4 header. A word that enters a CRC
    // is multiplied by x^32, and by x^32 again for each following word: the three remaining words
    // of the IPv4 header, the two of UDP, and the packet.
    let words = 1 + (IPV4_LEN - IPV4_ID - 4 + UDP_LEN + len) / 4;
    let shift_back = multiply(
        INVERSE_WORDS[words % INVERSE_WORDS.len()],
        INVERSE_BLOCKS[words / INVERSE_WORDS.len()],
    );
    let [i1, i0, flags, offset] = multiply(difference, shift_back).to_le_bytes();
    // RoCEv2 packets are never fragmented, so the fragment offset must not differ.
    if offset != 0 || flags & !unknown_flags != 0 {
        return None;
    }
    Some(IpId {
        id: guess.id ^ u16::from_be_bytes([i1, i0]),
        dont_fragment: guess.dont_fragment ^ (flags != 0),
    })
}

/// Bytes from the start of each header to the end of the BTH.
const FROM_BTH: usize = Bth::LEN;
const FROM_UDP: usize = UDP_LEN + FROM_BTH;
const FROM_IPV4: usize = IPV4_LEN + FROM_UDP;
const FROM_IPV6: usize = IPV6_LEN + FROM_UDP;

/// The powers of x^-32, for 0 to 255 words.
static INVERSE_WORDS: [u32; 256] = inverse_powers(32);
/// The powers of x^-(32 * 256), up to the length of the longest packet.
static INVERSE_BLOCKS: [u32; u16::MAX as usize / 4 / 256 + 1] = inverse_powers(32 * 256);

static BTH_TABLES: [Table; Bth::LEN] = tables(0);
static UDP_LENGTH_TABLES: [Table; 2] = tables(FROM_UDP - UDP_LENGTH - 2);
static IPV4_TOTAL_LENGTH_TABLES: [Table; 2] = tables(FROM_IPV4 - IPV4_TOTAL_LENGTH - 2);
static IPV4_ID_TABLES: [Table; 2] = tables(FROM_IPV4 - IPV4_ID - 2);
static IPV6_PAYLOAD_LENGTH_TABLES: [Table; 2] = tables(FROM_IPV6 - IPV6_PAYLOAD_LENGTH - 2);
static IPV4_FLAGS_TABLE: [Table; 1] = tables(FROM_IPV4 - IPV4_FLAGS - 1);

/// The contribution of [`IpId::FIRST`]. That of a zero byte is 0.
const FIRST_ID: u32 = tables::<1>(FROM_IPV4 - IPV4_FLAGS - 1)[0][DONT_FRAGMENT as usize];

/// The contribution of byte `i` of a field with the value `byte`.
#[inline]
fn lookup(tables: &[Table], i: usize, byte: u8) -> u32 {
    tables[i][usize::from(byte)]
}

#[cfg(test)]
mod tests;
