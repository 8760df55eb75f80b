//! What all header files have in common: a raw layout, a plain representation, and the way
//! between the two.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A header in its plain representation.
///
/// Reserved bits are sent as zero and ignored on receipt (9.2, 9.3), so each raw layout of the
/// right length is a header, and parsing can fail by shortness alone. The BTH and the GRH, which
/// have more to check, have a `parse` of their own.
pub trait Layout: Sized {
    /// The layout on the wire.
    type Raw: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + 'static;

    /// The specification's name for it.
    const NAME: &'static str;

    /// Its length on the wire, in bytes.
    const LEN: usize = size_of::<Self::Raw>();

    /// From the layout on the wire.
    fn from_raw(raw: &Self::Raw) -> Self;

    /// To the layout on the wire.
    fn to_raw(&self) -> Self::Raw;

    /// Reads it from the start of `bytes`; returns it and what follows it. `None` when `bytes`
    /// are too short.
    #[inline]
    fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, rest) = Self::Raw::ref_from_prefix(bytes).ok()?;
        Some((Self::from_raw(raw), rest))
    }

    /// Writes it to the start of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`Layout::LEN`].
    #[inline]
    fn emit(&self, out: &mut [u8]) {
        out[..Self::LEN].copy_from_slice(self.to_raw().as_bytes());
    }
}

/// The low 24 bits of a field whose top 8 are reserved.
pub(super) const LOW_24: u32 = 0xff_ffff;
