//! A whole packet: the BTH, the headers that its opcode calls for, the payload and its pad. The
//! ICRC that follows on the wire is not part of it.

use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, Feth, Headers, Ieth, ImmDt, Layout, Opcode,
    PayloadRule, Reth, Syndrome, Xrceth,
};
use crate::ids::{PKey, Qpn, RKey, Srqn};
use crate::psn::Psn;

/// Packets are whole multiples of this many bytes (9.2).
const ALIGNMENT: usize = 4;

/// How many bytes of pad follow a payload of `payload_len` bytes: 0 to 3 (9.2).
#[inline]
pub const fn pad_of(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() % ALIGNMENT) as u8
}

/// The length of a packet from the BTH to the end of the pad, in bytes.
#[inline]
pub const fn packet_len(header_len: usize, payload_len: usize) -> usize {
    header_len + payload_len + pad_of(payload_len) as usize
}

/// The rule that some bytes break, so that they are no packet. All of these are dropped silently
/// (9.6.1): who would get an answer is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// There is no whole BTH.
    #[error("{have} bytes are too short for a BTH, which takes {}", Bth::LEN)]
    TooShort {
        /// How many bytes there are.
        have: usize,
    },
    /// The transport header version is not 0 (9.2).
    #[error("the transport header has version {0}, not 0")]
    TransportVersion(u8),
    /// The opcode is of a transport that is not spoken here, or reserved in one that does not answer such (9.2.1).
    #[error("the opcode {0:#04x} is reserved or of an unsupported transport")]
    ReservedOpcode(u8),
    /// The length is not a multiple of 4 (9.2).
    #[error("the length of {0} bytes is not a multiple of {ALIGNMENT}")]
    Unaligned(usize),
    /// A header that the opcode calls for is not wholly there (9.3).
    #[error("{opcode}: {have} bytes are too short for the {header}, which takes {need}")]
    Truncated {
        /// The opcode.
        opcode: Opcode,
        /// The header.
        header: &'static str,
        /// How many bytes the header takes.
        need: usize,
        /// How many bytes were left for it.
        have: usize,
    },
    /// The pad is longer than all that follows the headers (9.2).
    #[error("{opcode}: a pad of {pad} bytes in {have} bytes of payload")]
    Pad {
        /// The opcode.
        opcode: Opcode,
        /// The length of the pad.
        pad: u8,
        /// How many bytes follow the headers.
        have: usize,
    },
    /// There is data where the opcode has none (9.4).
    #[error("{opcode}: {len} bytes of data, where there can be none")]
    UnexpectedPayload {
        /// The opcode.
        opcode: Opcode,
        /// Bytes of data, the pad included.
        len: usize,
    },
}

/// The headers of a packet.
///
/// Which of the fields are there is for the opcode to say ([`super::OpcodeInfo::headers`]): parsing
/// fills exactly those, and emitting writes exactly those.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The base transport header.
    pub bth: Bth,
    /// Who sent a datagram, and its key.
    pub deth: Option<Deth>,
    /// The shared receive queue that a request of XRC is for.
    pub xrceth: Option<Xrceth>,
    /// How far a FLUSH goes.
    pub feth: Option<Feth>,
    /// The remote memory of a WRITE, READ, FLUSH or ATOMIC WRITE.
    pub reth: Option<Reth>,
    /// The operands of an atomic.
    pub atomic: Option<AtomicEth>,
    /// How a request went.
    pub aeth: Option<Aeth>,
    /// What an atomic found.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// A key of the receiver's that it shall invalidate.
    pub ieth: Option<RKey>,
}

impl Header {
    /// A header with this opcode, for the default partition, from a migrated path (as NICs send
    /// it), and without pad. The headers that the opcode calls for are to be added.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Header {
            bth: Bth {
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
            },
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// An acknowledgement, or a NAK, of the connected transport of `opcode`, which is
    /// [`Opcode::RcAck`] or [`Opcode::XrcAck`].
    #[inline]
    pub const fn ack(opcode: Opcode, dest_qp: Qpn, psn: Psn, syndrome: Syndrome, msn: u32) -> Self {
        Self::new(opcode, dest_qp, psn).with_aeth(Aeth { syndrome, msn })
    }

    /// A congestion notification for `dest_qp` (A17.9.3).
    #[inline]
    pub const fn cnp(dest_qp: Qpn) -> Self {
        let mut header = Self::new(Opcode::Cnp, dest_qp, Psn::new(0));
        header.bth.becn = true;
        // As NICs have it: it is no packet of either path.
        header.bth.mig_req = false;
        header
    }

    /// With this DETH.
    #[inline]
    pub const fn with_deth(mut self, deth: Deth) -> Self {
        self.deth = Some(deth);
        self
    }

    /// With this XRCETH.
    #[inline]
    pub const fn with_xrceth(mut self, xrceth: Xrceth) -> Self {
        self.xrceth = Some(xrceth);
        self
    }

    /// With this FETH.
    #[inline]
    pub const fn with_feth(mut self, feth: Feth) -> Self {
        self.feth = Some(feth);
        self
    }

    /// With this RETH.
    #[inline]
    pub const fn with_reth(mut self, reth: Reth) -> Self {
        self.reth = Some(reth);
        self
    }

    /// With this AtomicETH.
    #[inline]
    pub const fn with_atomic(mut self, atomic: AtomicEth) -> Self {
        self.atomic = Some(atomic);
        self
    }

    /// With this AETH.
    #[inline]
    pub const fn with_aeth(mut self, aeth: Aeth) -> Self {
        self.aeth = Some(aeth);
        self
    }

    /// With this AtomicAckETH.
    #[inline]
    pub const fn with_atomic_ack(mut self, original: u64) -> Self {
        self.atomic_ack = Some(original);
        self
    }

    /// With this immediate data.
    #[inline]
    pub const fn with_imm(mut self, imm: u32) -> Self {
        self.imm = Some(imm);
        self
    }

    /// With this key to invalidate.
    #[inline]
    pub const fn with_ieth(mut self, rkey: RKey) -> Self {
        self.ieth = Some(rkey);
        self
    }

    /// With the pad that a payload of `len` bytes takes.
    #[inline]
    pub const fn with_payload_len(mut self, len: usize) -> Self {
        self.bth.pad = pad_of(len);
        self
    }

    /// With, or without, a request to acknowledge.
    #[inline]
    pub const fn with_ack_req(mut self, ack_req: bool) -> Self {
        self.bth.ack_req = ack_req;
        self
    }

    /// From a migrated path, or from one that may migrate (17.2.8).
    #[inline]
    pub const fn with_mig_req(mut self, mig_req: bool) -> Self {
        self.bth.mig_req = mig_req;
        self
    }

    /// With, or without, a solicited event.
    #[inline]
    pub const fn with_solicited(mut self, solicited: bool) -> Self {
        self.bth.solicited = solicited;
        self
    }

    /// The shared receive queue that a request of XRC is for.
    #[inline]
    pub const fn srq(&self) -> Option<Srqn> {
        match self.xrceth {
            Some(Xrceth { srqn }) => Some(srqn),
            None => None,
        }
    }

    /// How many bytes the headers take on the wire.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        Bth::LEN + self.bth.opcode.info().headers_len
    }

    /// Reads the headers from the start of `bytes`; returns them and what follows.
    #[inline]
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (bth, mut rest) = Bth::parse(bytes)?;
        let opcode = bth.opcode;
        let mut header = Self::new(opcode, bth.dest_qp, bth.psn);
        header.bth = bth;
        let has = opcode.info().headers;
        if has.contains(Headers::DETH) {
            header.deth = Some(take(opcode, &mut rest)?);
        }
        if has.contains(Headers::XRCETH) {
            header.xrceth = Some(take(opcode, &mut rest)?);
        }
        if has.contains(Headers::FETH) {
            header.feth = Some(take(opcode, &mut rest)?);
        }
        if has.contains(Headers::RETH) {
            header.reth = Some(take(opcode, &mut rest)?);
        }
        if has.contains(Headers::ATOMIC_ETH) {
            header.atomic = Some(take(opcode, &mut rest)?);
        }
        if has.contains(Headers::AETH) {
            header.aeth = Some(take(opcode, &mut rest)?);
        }
        if has.contains(Headers::ATOMIC_ACK_ETH) {
            let AtomicAckEth(original) = take(opcode, &mut rest)?;
            header.atomic_ack = Some(original);
        }
        if has.contains(Headers::IMMDT) {
            let ImmDt(imm) = take(opcode, &mut rest)?;
            header.imm = Some(imm);
        }
        if has.contains(Headers::IETH) {
            let Ieth(rkey) = take(opcode, &mut rest)?;
            header.ieth = Some(rkey);
        }
        if has.contains(Headers::CNP) {
            take::<Cnp>(opcode, &mut rest)?;
        }
        Ok((header, rest))
    }

    /// Writes the headers to the start of `out` and returns how many bytes they took. A header
    /// that the opcode calls for but that was not given goes out as zeroes, so that what is sent is
    /// well-formed in any case; in a debug build that is a panic.
    ///
    /// # Panics
    /// When `out` is shorter than [`Header::len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let has = self.bth.opcode.info().headers;
        debug_assert_eq!(self.given(), has - Headers::CNP, "{:?}", self.bth.opcode);
        let len = self.len();
        let (bth, mut rest) = out[..len].split_at_mut(Bth::LEN);
        self.bth.emit(bth);
        if has.contains(Headers::DETH) {
            rest = put(self.deth.unwrap_or_default(), rest);
        }
        if has.contains(Headers::XRCETH) {
            rest = put(self.xrceth.unwrap_or_default(), rest);
        }
        if has.contains(Headers::FETH) {
            rest = put(self.feth.unwrap_or_default(), rest);
        }
        if has.contains(Headers::RETH) {
            rest = put(self.reth.unwrap_or_default(), rest);
        }
        if has.contains(Headers::ATOMIC_ETH) {
            rest = put(self.atomic.unwrap_or_default(), rest);
        }
        if has.contains(Headers::AETH) {
            rest = put(self.aeth.unwrap_or_default(), rest);
        }
        if has.contains(Headers::ATOMIC_ACK_ETH) {
            rest = put(AtomicAckEth(self.atomic_ack.unwrap_or_default()), rest);
        }
        if has.contains(Headers::IMMDT) {
            rest = put(ImmDt(self.imm.unwrap_or_default()), rest);
        }
        if has.contains(Headers::IETH) {
            rest = put(Ieth(self.ieth.unwrap_or_default()), rest);
        }
        if has.contains(Headers::CNP) {
            put(Cnp, rest);
        }
        len
    }

    /// The headers whose fields are filled.
    fn given(&self) -> Headers {
        let mut given = Headers::empty();
        given.set(Headers::DETH, self.deth.is_some());
        given.set(Headers::XRCETH, self.xrceth.is_some());
        given.set(Headers::FETH, self.feth.is_some());
        given.set(Headers::RETH, self.reth.is_some());
        given.set(Headers::ATOMIC_ETH, self.atomic.is_some());
        given.set(Headers::AETH, self.aeth.is_some());
        given.set(Headers::ATOMIC_ACK_ETH, self.atomic_ack.is_some());
        given.set(Headers::IMMDT, self.imm.is_some());
        given.set(Headers::IETH, self.ieth.is_some());
        given
    }
}

/// Takes a header that `opcode` calls for off the start of `rest`.
#[inline]
fn take<H: Layout>(opcode: Opcode, rest: &mut &[u8]) -> Result<H, ParseError> {
    let Some((header, after)) = H::parse(rest) else {
        return Err(ParseError::Truncated {
            opcode,
            header: H::NAME,
            need: H::LEN,
            have: rest.len(),
        });
    };
    *rest = after;
    Ok(header)
}

/// Puts a header at the start of `out` and returns what follows it.
#[inline]
fn put<H: Layout>(header: H, out: &mut [u8]) -> &mut [u8] {
    header.emit(out);
    &mut out[H::LEN..]
}

/// A packet, its payload where it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Its headers.
    pub header: Header,
    /// Its data, without the pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet: all of `bytes`, from the BTH to the end of the pad, the ICRC taken off. It
    /// takes the same time whatever they are.
    ///
    /// The length of the payload is not held against a path MTU, which a packet does not tell:
    /// [`PayloadRule::accepts`] does that.
    ///
    /// # Errors
    /// The first rule that the bytes break. Such a packet is to be dropped.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) = Header::parse(bytes)?;
        let opcode = header.bth.opcode;
        if !bytes.len().is_multiple_of(ALIGNMENT) {
            return Err(ParseError::Unaligned(bytes.len()));
        }
        if opcode.info().payload == PayloadRule::None && !rest.is_empty() {
            return Err(ParseError::UnexpectedPayload {
                opcode,
                len: rest.len(),
            });
        }
        let pad = header.bth.pad;
        let Some(len) = rest.len().checked_sub(usize::from(pad)) else {
            return Err(ParseError::Pad {
                opcode,
                pad,
                have: rest.len(),
            });
        };
        Ok(Packet {
            header,
            payload: &rest[..len],
        })
    }

    /// The length on the wire from the BTH to the end of the pad, in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        packet_len(self.header.len(), self.payload.len())
    }

    /// Writes the packet to the start of `out`, with the pad that its payload takes whatever the
    /// header says, and returns how many bytes it took.
    ///
    /// # Panics
    /// When `out` is shorter than [`Packet::len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let header = self.header.with_payload_len(self.payload.len());
        let (headers, rest) = out[..len].split_at_mut(header.len());
        header.emit(headers);
        let (payload, pad) = rest.split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        pad.fill(0);
        len
    }
}

#[cfg(test)]
mod tests;
