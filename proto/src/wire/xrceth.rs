//! The XRC extended transport header, XRCETH: the shared receive queue of a request (A14).

use super::layout::Layout;
use crate::ids::Srqn;
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The XRC extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Xrceth {
    /// The number of the shared receive queue.
    pub srqn: Srqn,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    /// 8 reserved bits, SRQ number.
    srqn: U32,
}

impl Layout for Xrceth {
    type Raw = Raw;
    const NAME: &'static str = "XRCETH";

    #[inline]
    fn from_raw(raw: &Raw) -> Self {
        Xrceth {
            srqn: Srqn::new(raw.srqn.get()),
        }
    }

    #[inline]
    fn to_raw(&self) -> Raw {
        Raw {
            srqn: U32::new(self.srqn.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_byte_is_ignored_and_sent_as_zero() {
        let (xrceth, _) = Xrceth::parse(&[0xff, 0x12, 0x34, 0x56]).unwrap();
        assert_eq!(xrceth.srqn, Srqn::new(0x12_3456));
        let mut out = [0xff; 4];
        xrceth.emit(&mut out);
        assert_eq!(out, [0, 0x12, 0x34, 0x56]);
    }
}
