//! Packet sequence numbers: 24 bits, with serial-number arithmetic (9.7.2).

use std::fmt;
use std::ops::{Add, Sub};

/// A packet sequence number.
///
/// Comparison is serial: [`Psn::diff`] is the signed distance between two numbers, from -2^23 to
/// 2^23 - 1 (9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The size of the number space: 2^24.
    pub const SPACE: u32 = 1 << 24;

    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & (Self::SPACE - 1))
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next number.
    pub const fn next(self) -> Self {
        Psn::new(self.0 + 1)
    }

    /// The previous number.
    pub const fn prev(self) -> Self {
        Psn::new(self.0.wrapping_sub(1))
    }

    /// The signed distance from `other` to this number; negative when this number is before
    /// `other`.
    pub const fn diff(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether this number is before `other`.
    pub const fn before(self, other: Psn) -> bool {
        self.diff(other) < 0
    }

    /// Whether this number is after `other`.
    pub const fn after(self, other: Psn) -> bool {
        self.diff(other) > 0
    }
}

impl Add<u32> for Psn {
    type Output = Psn;
    fn add(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }
}

impl Sub<u32> for Psn {
    type Output = Psn;
    fn sub(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(packets))
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn psn_wraps_at_2_to_the_24() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), last);
        assert_eq!(Psn::new(0).diff(last), 1);
        assert!(last.before(Psn::new(0)));
    }

    #[test]
    fn half_of_the_number_space_is_before() {
        assert_eq!(Psn::new(1 << 23).diff(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new((1 << 23) - 1).diff(Psn::new(0)), (1 << 23) - 1);
    }

    proptest! {
        #[test]
        fn diff_undoes_add(start in 0u32..Psn::SPACE, n in 0u32..(1 << 23)) {
            let a = Psn::new(start);
            prop_assert_eq!((a + n).diff(a), n as i32);
            prop_assert_eq!(a.diff(a + n), -(n as i32));
            prop_assert_eq!((a + n) - n, a);
        }
    }
}
