//! The path MTU: the maximum payload of one packet (9.7.4, table 49).

/// A path MTU. The discriminants are those of `enum ibv_mtu` and of CM messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All values, in ascending order.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// The most bytes that RoCEv2 adds to a payload.
    ///
    /// IPv6 40, UDP 8, BTH 12, the longest sequence of extended headers 32 (XRCETH and AtomicETH),
    /// ICRC 4.
    pub const HEADER_ROOM: u32 = 40 + 8 + 12 + 32 + 4;

    /// The payload of a full packet, in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The binary logarithm of [`Mtu::bytes`].
    pub const fn log2(self) -> u32 {
        7 + self as u32
    }

    /// Returns the MTU with this `enum ibv_mtu` number.
    pub const fn from_number(number: u8) -> Option<Mtu> {
        match number {
            1..=5 => Some(Self::ALL[number as usize - 1]),
            _ => None,
        }
    }

    /// Returns the largest MTU whose packets fit an interface MTU of `mtu` bytes, if any does.
    pub fn for_interface(mtu: u32) -> Option<Mtu> {
        let room = mtu.checked_sub(Self::HEADER_ROOM)? as usize;
        Self::ALL.into_iter().rev().find(|m| m.bytes() <= room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_is_1024_on_ethernet_and_4096_with_jumbo_frames() {
        assert_eq!(Mtu::for_interface(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::for_interface(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::for_interface(65536), Some(Mtu::B4096));
        assert_eq!(Mtu::for_interface(300), None);
    }
}
