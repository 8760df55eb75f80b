//! The path MTU: how much payload one packet carries (9.7.4, table 49).

/// A path MTU. The numbers are those of `enum ibv_mtu` and of the CM's messages.
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
    /// All of them, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// What a RoCEv2 packet adds to its payload at most: IPv6 40, UDP 8, BTH 12, the longest run of
    /// extended headers (XRCETH 4 and AtomicETH 28, or RETH 16 and ImmDt 4), ICRC 4.
    pub const HEADER_ROOM: u32 = 40 + 8 + 12 + 32 + 4;

    /// The payload of a full packet, in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The one with this `enum ibv_mtu` number.
    pub const fn from_number(number: u8) -> Option<Mtu> {
        match number {
            1..=5 => Some(Self::ALL[number as usize - 1]),
            _ => None,
        }
    }

    /// The largest whose packets fit an interface of `mtu` bytes, if any does.
    pub fn for_interface(mtu: u32) -> Option<Mtu> {
        let room = mtu.checked_sub(Self::HEADER_ROOM)? as usize;
        Self::ALL.into_iter().rev().find(|m| m.bytes() <= room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_carries_1024_and_jumbo_frames_4096() {
        assert_eq!(Mtu::for_interface(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::for_interface(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::for_interface(65536), Some(Mtu::B4096));
        assert_eq!(Mtu::for_interface(300), None);
    }
}
