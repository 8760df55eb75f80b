//! The RDMA extended transport header, RETH: a range of remote memory (9.3).

use super::layout::Layout;
use crate::ids::RKey;
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The RDMA extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reth {
    /// The address of the first byte, in the responder's address space.
    pub addr: u64,
    /// The responder's key.
    pub rkey: RKey,
    /// The length of the whole message in bytes, 0 to 2^31.
    pub length: u32,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    addr: U64,
    rkey: U32,
    length: U32,
}

impl Layout for Reth {
    type Raw = Raw;
    const NAME: &'static str = "RETH";

    #[inline]
    fn from_raw(raw: &Raw) -> Self {
        Reth {
            addr: raw.addr.get(),
            rkey: RKey(raw.rkey.get()),
            length: raw.length.get(),
        }
    }

    #[inline]
    fn to_raw(&self) -> Raw {
        Raw {
            addr: U64::new(self.addr),
            rkey: U32::new(self.rkey.0),
            length: U32::new(self.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_offsets_match_the_specification() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        let (reth, _) = Reth::parse(&bytes).unwrap();
        assert_eq!(reth.addr, 0x0102_0304_0506_0708);
        assert_eq!(reth.rkey, RKey(0x090a_0b0c));
        assert_eq!(reth.length, 0x0d0e_0f10);
        let mut out = [0; 16];
        reth.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Reth::parse(&bytes[..15]), None);
    }
}
