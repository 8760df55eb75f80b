//! The datagram extended transport header, DETH: queue key and source queue pair (9.3).

use super::layout::Layout;
use crate::ids::{QKey, Qpn};
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Deth {
    /// The queue key of the destination queue pair.
    pub qkey: QKey,
    /// The source queue pair.
    pub src_qp: Qpn,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Raw {
    qkey: U32,
    /// 8 reserved bits, source QP.
    src_qp: U32,
}

impl Layout for Deth {
    type Raw = Raw;
    const NAME: &'static str = "DETH";

    #[inline]
    fn from_raw(raw: &Raw) -> Self {
        Deth {
            qkey: QKey(raw.qkey.get()),
            src_qp: Qpn::new(raw.src_qp.get()),
        }
    }

    #[inline]
    fn to_raw(&self) -> Raw {
        Raw {
            qkey: U32::new(self.qkey.0),
            src_qp: U32::new(self.src_qp.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_offsets_match_the_specification() {
        let bytes = [0x80, 0x01, 0, 0, 0, 0x12, 0x34, 0x56, 0xee];
        let (deth, rest) = Deth::parse(&bytes).unwrap();
        assert_eq!(deth.qkey, QKey(0x8001_0000));
        assert_eq!(deth.src_qp, Qpn::new(0x12_3456));
        assert_eq!(rest, [0xee]);
        let mut out = [0; 8];
        deth.emit(&mut out);
        assert_eq!(out, bytes[..8]);
        assert_eq!(Deth::parse(&bytes[..7]), None);
    }
}
