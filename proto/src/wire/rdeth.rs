//! The reliable datagram extended transport header, RDETH (9.3).
//!
//! RoCE has no reliable datagrams, and the opcode table has none of theirs. The header is for tools
//! that decode InfiniBand packets.

use super::layout::{LOW_24, Layout};
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The reliable datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rdeth {
    /// The end-to-end context, 24 bits.
    pub ee_context: u32,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    /// 8 reserved bits, end-to-end context.
    ee_context: U32,
}

impl Layout for Rdeth {
    type Raw = Raw;
    const NAME: &'static str = "RDETH";

    #[inline]
    fn from_raw(raw: &Raw) -> Self {
        Rdeth {
            ee_context: raw.ee_context.get() & LOW_24,
        }
    }

    #[inline]
    fn to_raw(&self) -> Raw {
        Raw {
            ee_context: U32::new(self.ee_context & LOW_24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_byte_is_ignored_and_sent_as_zero() {
        let (rdeth, rest) = Rdeth::parse(&[0xff, 0x12, 0x34, 0x56]).unwrap();
        assert_eq!(rdeth.ee_context, 0x12_3456);
        assert!(rest.is_empty());
        let mut out = [0xff; 4];
        rdeth.emit(&mut out);
        assert_eq!(out, [0, 0x12, 0x34, 0x56]);
    }
}
