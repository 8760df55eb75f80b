//! The invalidate extended transport header, IETH (9.3).

use super::layout::Layout;
use crate::ids::RKey;
use zerocopy::network_endian::U32;

/// The invalidate extended transport header: the receiver's remote key to invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ieth(pub RKey);

impl Layout for Ieth {
    type Raw = U32;
    const NAME: &'static str = "IETH";

    #[inline]
    fn from_raw(raw: &U32) -> Self {
        Ieth(RKey(raw.get()))
    }

    #[inline]
    fn to_raw(&self) -> U32 {
        U32::new(self.0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_significant_byte_comes_first() {
        let (ieth, _) = Ieth::parse(&[1, 2, 3, 4]).unwrap();
        assert_eq!(ieth, Ieth(RKey(0x0102_0304)));
        let mut out = [0; 4];
        ieth.emit(&mut out);
        assert_eq!(out, [1, 2, 3, 4]);
    }
}
