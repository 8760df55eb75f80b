//! The trait of all headers: conversion between wire layout and plain representation.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A header in its plain representation.
///
/// Reserved bits are sent as zero and ignored on receipt (9.2, 9.3). Any bytes of the right length
/// are therefore a valid header, and parsing fails only on short input. The BTH and the GRH have
/// more to check and parse functions of their own.
pub trait Layout: Sized {
    /// The layout on the wire.
    type Raw: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + 'static;

    /// The name in the specification.
    const NAME: &'static str;

    /// The length on the wire, in bytes.
    const LEN: usize = size_of::<Self::Raw>();

    /// Converts from the wire layout.
    fn from_raw(raw: &Self::Raw) -> Self;

    /// Converts to the wire layout.
    fn to_raw(&self) -> Self::Raw;

    /// Reads the header from the start of `bytes`; returns it and the rest.
    ///
    /// `None` when `bytes` are too short.
    #[inline]
    fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, rest) = Self::Raw::ref_from_prefix(bytes).ok()?;
        Some((Self::from_raw(raw), rest))
    }

    /// Writes the header to the start of `out`.
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
