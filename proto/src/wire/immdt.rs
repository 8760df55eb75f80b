//! The immediate data header, ImmDt: 32 bits for the receiver's completion (9.3).

use super::layout::Layout;
use zerocopy::network_endian::U32;

/// Immediate data, in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ImmDt(pub u32);

impl Layout for ImmDt {
    type Raw = U32;
    const NAME: &'static str = "ImmDt";

    #[inline]
    fn from_raw(raw: &U32) -> Self {
        ImmDt(raw.get())
    }

    #[inline]
    fn to_raw(&self) -> U32 {
        U32::new(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_significant_byte_comes_first() {
        let (imm, _) = ImmDt::parse(&[1, 2, 3, 4]).unwrap();
        assert_eq!(imm, ImmDt(0x0102_0304));
        let mut out = [0; 4];
        imm.emit(&mut out);
        assert_eq!(out, [1, 2, 3, 4]);
    }
}
