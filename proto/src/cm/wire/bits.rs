//! Fields that share a byte or a word with others.

use zerocopy::network_endian::U32;

/// Splits a field into its high 24 bits and its low byte.
pub(super) fn split(field: U32) -> (u32, u8) {
    (field.get() >> 8, field.get() as u8)
}

/// Joins the low 24 bits of `high` and the byte `low` below them.
pub(super) fn join(high: u32, low: u8) -> U32 {
    U32::new(high << 8 | u32::from(low))
}

/// Returns the low `width` bits of `value`.
pub(super) const fn low_bits(value: u8, width: u32) -> u8 {
    value & ((1 << width) - 1)
}
