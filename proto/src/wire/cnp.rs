//! The reserved bytes after the BTH of a congestion notification packet (A17.9.3).

use super::layout::Layout;

/// The 16 reserved bytes of a CNP: sent as zero, ignored on receipt.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cnp;

impl Layout for Cnp {
    type Raw = [u8; 16];
    const NAME: &'static str = "CNP padding";

    #[inline]
    fn from_raw(_: &[u8; 16]) -> Self {
        Cnp
    }

    #[inline]
    fn to_raw(&self) -> [u8; 16] {
        [0; 16]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_ignored_and_sent_as_zero() {
        assert!(Cnp::parse(&[0xff; 16]).is_some());
        assert_eq!(Cnp::parse(&[0; 15]), None);
        let mut out = [0xff; 16];
        Cnp.emit(&mut out);
        assert_eq!(out, [0; 16]);
    }
}
