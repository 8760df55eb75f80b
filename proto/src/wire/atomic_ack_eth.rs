//! The atomic acknowledge extended transport header, AtomicAckETH (9.3).

use super::layout::Layout;
use zerocopy::network_endian::U64;

/// The atomic acknowledge extended transport header: the original value of the 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AtomicAckEth(pub u64);

impl Layout for AtomicAckEth {
    type Raw = U64;
    const NAME: &'static str = "AtomicAckETH";

    #[inline]
    fn from_raw(raw: &U64) -> Self {
        AtomicAckEth(raw.get())
    }

    #[inline]
    fn to_raw(&self) -> U64 {
        U64::new(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_significant_byte_comes_first() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let (ack, _) = AtomicAckEth::parse(&bytes).unwrap();
        assert_eq!(ack, AtomicAckEth(0x0102_0304_0506_0708));
        let mut out = [0; 8];
        ack.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
