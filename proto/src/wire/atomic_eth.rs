//! The atomic extended transport header, AtomicETH: the operands of CmpSwap and FetchAdd (9.3).

use super::layout::Layout;
use crate::ids::RKey;
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The atomic extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AtomicEth {
    /// The address of the 8 bytes, in the responder's address space.
    pub addr: u64,
    /// The responder's key.
    pub rkey: RKey,
    /// The new value of CmpSwap, or the addend of FetchAdd.
    pub swap_or_add: u64,
    /// The expected value of CmpSwap; ignored by FetchAdd.
    pub compare: u64,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    addr: U64,
    rkey: U32,
    swap_or_add: U64,
    compare: U64,
}

impl Layout for AtomicEth {
    type Raw = Raw;
    const NAME: &'static str = "AtomicETH";

    #[inline]
    fn from_raw(raw: &Raw) -> Self {
        AtomicEth {
            addr: raw.addr.get(),
            rkey: RKey(raw.rkey.get()),
            swap_or_add: raw.swap_or_add.get(),
            compare: raw.compare.get(),
        }
    }

    #[inline]
    fn to_raw(&self) -> Raw {
        Raw {
            addr: U64::new(self.addr),
            rkey: U32::new(self.rkey.0),
            swap_or_add: U64::new(self.swap_or_add),
            compare: U64::new(self.compare),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_offsets_match_the_specification() {
        let bytes: [u8; 28] = std::array::from_fn(|i| i as u8);
        let (atomic, _) = AtomicEth::parse(&bytes).unwrap();
        assert_eq!(atomic.addr, 0x0001_0203_0405_0607);
        assert_eq!(atomic.rkey, RKey(0x0809_0a0b));
        assert_eq!(atomic.swap_or_add, 0x0c0d_0e0f_1011_1213);
        assert_eq!(atomic.compare, 0x1415_1617_1819_1a1b);
        let mut out = [0; 28];
        atomic.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(AtomicEth::parse(&bytes[..27]), None);
    }
}
