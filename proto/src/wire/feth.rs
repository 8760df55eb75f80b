//! The flush extended transport header, FETH: placement and selectivity of a FLUSH (A19).

use super::layout::Layout;
use bitflags::bitflags;
use zerocopy::network_endian::U32;

bitflags! {
    /// The flush extended transport header: placement type and selectivity level.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct Feth: u32 {
        /// Placement: globally visible to the responder's processors.
        const GLOBAL_VISIBILITY = 1 << 0;
        /// Placement: persistent.
        const PERSISTENCE = 1 << 1;
        /// Selectivity, two bits at bit 4: the whole memory region instead of the range in the
        /// RETH.
        const WHOLE_REGION = 1 << 4;
        // Unknown bits are kept, so that the responder can refuse them.
        const _ = !0;
    }
}

impl Layout for Feth {
    type Raw = U32;
    const NAME: &'static str = "FETH";

    #[inline]
    fn from_raw(raw: &U32) -> Self {
        Feth::from_bits_retain(raw.get())
    }

    #[inline]
    fn to_raw(&self) -> U32 {
        U32::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_in_the_lowest_bits_and_selection_above() {
        let (feth, _) = Feth::parse(&[0, 0, 0, 0x12]).unwrap();
        assert_eq!(feth, Feth::PERSISTENCE | Feth::WHOLE_REGION);
        let mut out = [0; 4];
        feth.emit(&mut out);
        assert_eq!(out, [0, 0, 0, 0x12]);
    }
}
