//! Whole packets: BTH, extended headers, payload and pad, without the ICRC.

use super::error::{ALIGNMENT, ParseError};
use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, Feth, Headers, Ieth, ImmDt, Layout, Opcode,
    PayloadRule, Reth, Syndrome, Xrceth,
};
use crate::ids::{Qpn, RKey, Srqn};
use crate::psn::Psn;

/// Returns the pad count of a payload of `payload_len` bytes: 0 to 3 (9.2).
#[inline]
pub const fn pad_of(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() % ALIGNMENT) as u8
}

/// Returns the length of a packet from the BTH to the end of the pad, in bytes.
#[inline]
pub const fn packet_len(header_len: usize, payload_len: usize) -> usize {
    header_len + payload_len + pad_of(payload_len) as usize
}

/// The headers of a packet.
///
/// The opcode determines which optional fields are set ([`super::OpcodeInfo::headers`]). Parsing
/// fills exactly those, and emitting writes exactly those.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The base transport header.
    pub bth: Bth,
    /// Queue key and source queue pair of a datagram.
    pub deth: Option<Deth>,
    /// The shared receive queue of an XRC request.
    pub xrceth: Option<Xrceth>,
    /// Placement and selectivity of a FLUSH.
    pub feth: Option<Feth>,
    /// The remote memory range of an RDMA WRITE, READ, FLUSH or ATOMIC WRITE.
    pub reth: Option<Reth>,
    /// The operands of an atomic.
    pub atomic: Option<AtomicEth>,
    /// The acknowledgement.
    pub aeth: Option<Aeth>,
    /// The original value that an atomic returns.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The receiver's remote key to invalidate.
    pub ieth: Option<RKey>,
}

impl Header {
    /// Returns a header with defaults: the default partition, MigReq set (as NICs do), no pad.
    ///
    /// The caller must add the extended headers of the opcode.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self::of(Bth::new(opcode, dest_qp, psn))
    }

    /// Returns an ACK or NAK. `opcode` is [`Opcode::RcAck`] or [`Opcode::XrcAck`].
    #[inline]
    pub const fn ack(opcode: Opcode, dest_qp: Qpn, psn: Psn, syndrome: Syndrome, msn: u32) -> Self {
        Self::new(opcode, dest_qp, psn).with_aeth(Aeth { syndrome, msn })
    }

    /// Returns a congestion notification for `dest_qp` (A17.9.3).
    #[inline]
    pub const fn cnp(dest_qp: Qpn) -> Self {
        let mut header = Self::new(Opcode::Cnp, dest_qp, Psn::new(0));
        header.bth.becn = true;
        // NICs clear MigReq in CNPs.
        header.bth.mig_req = false;
        header
    }

    /// Sets the DETH.
    #[inline]
    pub const fn with_deth(mut self, deth: Deth) -> Self {
        self.deth = Some(deth);
        self
    }

    /// Sets the XRCETH.
    #[inline]
    pub const fn with_xrceth(mut self, xrceth: Xrceth) -> Self {
        self.xrceth = Some(xrceth);
        self
    }

    /// Sets the FETH.
    #[inline]
    pub const fn with_feth(mut self, feth: Feth) -> Self {
        self.feth = Some(feth);
        self
    }

    /// Sets the RETH.
    #[inline]
    pub const fn with_reth(mut self, reth: Reth) -> Self {
        self.reth = Some(reth);
        self
    }

    /// Sets the AtomicETH.
    #[inline]
    pub const fn with_atomic(mut self, atomic: AtomicEth) -> Self {
        self.atomic = Some(atomic);
        self
    }

    /// Sets the AETH.
    #[inline]
    pub const fn with_aeth(mut self, aeth: Aeth) -> Self {
        self.aeth = Some(aeth);
        self
    }

    /// Sets the AtomicAckETH.
    #[inline]
    pub const fn with_atomic_ack(mut self, original: u64) -> Self {
        self.atomic_ack = Some(original);
        self
    }

    /// Sets the immediate data.
    #[inline]
    pub const fn with_imm(mut self, imm: u32) -> Self {
        self.imm = Some(imm);
        self
    }

    /// Sets the key to invalidate.
    #[inline]
    pub const fn with_ieth(mut self, rkey: RKey) -> Self {
        self.ieth = Some(rkey);
        self
    }

    /// Sets the pad count for a payload of `len` bytes.
    #[inline]
    pub const fn with_payload_len(mut self, len: usize) -> Self {
        self.bth.pad = pad_of(len);
        self
    }

    /// Sets the AckReq bit.
    #[inline]
    pub const fn with_ack_req(mut self, ack_req: bool) -> Self {
        self.bth.ack_req = ack_req;
        self
    }

    /// Sets the MigReq bit (17.2.8).
    #[inline]
    pub const fn with_mig_req(mut self, mig_req: bool) -> Self {
        self.bth.mig_req = mig_req;
        self
    }

    /// Sets the solicited event bit.
    #[inline]
    pub const fn with_solicited(mut self, solicited: bool) -> Self {
        self.bth.solicited = solicited;
        self
    }

    /// The shared receive queue that an XRC request names.
    #[inline]
    pub const fn srq(&self) -> Option<Srqn> {
        match self.xrceth {
            Some(Xrceth { srqn }) => Some(srqn),
            None => None,
        }
    }

    /// The length of the headers on the wire, in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.bth.headers_len()
    }

    /// Returns a header without extended headers.
    #[inline]
    pub(crate) const fn of(bth: Bth) -> Self {
        Header {
            bth,
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

    /// Reads the extended headers from the start of `rest`; returns what follows them.
    #[inline]
    fn parse_extended<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], ParseError> {
        let opcode = self.bth.opcode;
        let has = opcode.info().headers;
        // Most packets of connections have none, or an AETH only.
        if has.is_empty() {
            return Ok(rest);
        }
        if has == Headers::AETH {
            self.aeth = Some(take(opcode, &mut rest)?);
            return Ok(rest);
        }
        self.parse_any_extended(rest)
    }

    /// See [`Self::parse_extended`].
    #[inline(never)]
    fn parse_any_extended<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], ParseError> {
        let header = self;
        let opcode = header.bth.opcode;
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
        Ok(rest)
    }

    /// Writes the headers to the start of `out` and returns their length in bytes.
    ///
    /// A header that the opcode requires but that is not set is written as zeroes, so that the
    /// packet is well-formed in any case. Debug builds panic instead.
    ///
    /// # Panics
    /// When `out` is shorter than [`Header::len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let has = self.bth.opcode.info().headers;
        debug_assert_eq!(self.given(), has - Headers::CNP, "{:?}", self.bth.opcode);
        let len = self.len();
        let (bth, rest) = out[..len].split_at_mut(Bth::LEN);
        self.bth.emit(bth);
        // See `parse_extended`.
        if has == Headers::AETH {
            put(self.aeth.unwrap_or_default(), rest);
        } else if !has.is_empty() {
            self.emit_any_extended(has, rest);
        }
        len
    }

    /// Writes the extended headers that the opcode requires to the start of `rest`.
    #[inline(never)]
    fn emit_any_extended(&self, has: Headers, mut rest: &mut [u8]) {
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
    }

    /// The headers whose fields are set.
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

/// Writes an ACK, a NAK or another packet of a BTH and an AETH only to the start of `out`.
///
/// It equals that of a [`Header`] with these two, which has room for all extended headers and takes
/// more instructions to make.
///
/// # Panics
/// When `out` is shorter than the two headers.
#[inline]
pub(crate) fn emit_ack(bth: &Bth, aeth: Aeth, out: &mut [u8]) {
    debug_assert_eq!(bth.opcode.info().headers, Headers::AETH);
    let (first, rest) = out.split_at_mut(Bth::LEN);
    bth.emit(first);
    put(aeth, rest);
}

/// Removes one header from the start of `rest`.
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

/// Writes one header to the start of `out` and returns the rest.
#[inline]
fn put<H: Layout>(header: H, out: &mut [u8]) -> &mut [u8] {
    header.emit(out);
    &mut out[H::LEN..]
}

/// A packet, borrowing its payload from the receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The headers.
    pub header: Header,
    /// The payload, without the pad.
    pub payload: &'a [u8],
}

/// A packet that [`Packet::read`] replaces.
impl Default for Packet<'_> {
    #[inline]
    fn default() -> Self {
        Packet {
            header: Header::new(Opcode::RcAck, Qpn::new(0), Psn::new(0)),
            payload: &[],
        }
    }
}

impl<'a> Packet<'a> {
    /// Parses a packet: all of `bytes`, from the BTH to the end of the pad, without the ICRC.
    ///
    /// The time is constant. The payload length is not checked against the path MTU, which depends
    /// on the queue pair; see [`PayloadRule::accepts`].
    ///
    /// # Errors
    /// The first [`ParseError`] found. Such a packet must be dropped.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut packet = Packet::default();
        packet.read(bytes)?;
        Ok(packet)
    }

    /// Replaces the packet by that in `bytes`, as [`Packet::parse`] does, without a copy. On an
    /// error it is unspecified.
    ///
    /// # Errors
    /// See [`Packet::parse`].
    #[inline]
    pub fn read(&mut self, bytes: &'a [u8]) -> Result<(), ParseError> {
        let (bth, rest) = Bth::parse(bytes)?;
        self.header = Header::of(bth);
        let rest = self.header.parse_extended(rest)?;
        let opcode = bth.opcode;
        if !bytes.len().is_multiple_of(ALIGNMENT) {
            return Err(ParseError::Unaligned(bytes.len()));
        }
        if opcode.info().payload == PayloadRule::None && !rest.is_empty() {
            return Err(ParseError::UnexpectedPayload {
                opcode,
                len: rest.len(),
            });
        }
        let pad = bth.pad;
        let Some(len) = rest.len().checked_sub(usize::from(pad)) else {
            return Err(ParseError::Pad {
                opcode,
                pad,
                have: rest.len(),
            });
        };
        self.payload = &rest[..len];
        Ok(())
    }

    /// The length on the wire from the BTH to the end of the pad, in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        packet_len(self.header.len(), self.payload.len())
    }

    /// Writes the packet to the start of `out` and returns its length in bytes.
    ///
    /// The pad is that of the payload, whatever the header says.
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
