//! Identifiers that appear on the wire, each with a type of its own.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A queue pair number: 24 bits (9.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Queue pair 1, the general service interface: it carries connection management (13.5.1).
    pub const GSI: Qpn = Qpn(1);
    /// The destination queue pair of every multicast packet (9.6.1.2).
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Qpn(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// The number of a shared receive queue of XRC: 24 bits (A14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Srqn(u32);

impl Srqn {
    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Srqn(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srqn({:#08x})", self.0)
    }
}

impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A local key: names a memory region in a scatter/gather element (10.6.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct LKey(pub u32);

/// A remote key: names a memory region or window in a packet (10.6.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct RKey(pub u32);

/// A partition key: bit 15 is full membership, the other 15 the partition (10.9.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition with full membership, the only one in RoCE (A17.5.2).
    pub const DEFAULT: PKey = PKey(0xffff);

    /// Whether a packet with `other` may enter a partition with this key.
    ///
    /// Both must name the same partition, and at least one must be a full member (10.9.3).
    pub const fn matches(self, other: PKey) -> bool {
        (self.0 & 0x7fff) == (other.0 & 0x7fff) && ((self.0 | other.0) & 0x8000) != 0
    }
}

/// A queue key; a datagram must carry that of the destination queue pair (10.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct QKey(pub u32);

/// Where a packet came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Source {
    /// Its source address.
    pub gid: Gid,
    /// Its UDP source port.
    pub port: u16,
}

/// A global identifier: an IPv6 address, or an IPv4-mapped one in RoCEv2 (A17.4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID of an interface address.
    #[inline]
    pub fn from_ip(ip: IpAddr) -> Self {
        // As a number, so that the compiler does not take the address apart into bytes.
        let number = match ip {
            IpAddr::V4(v4) => 0xffff_0000_0000 | u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        Gid(number.to_be_bytes())
    }

    /// Returns the IP address of this GID: IPv4 if the GID is IPv4-mapped.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Whether all bytes are zero, as in an unused entry of a GID table.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Gid::from_ip(ip.into())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Gid(ip.octets())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_of_ipv4_is_mapped_and_converts_back() {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!(&gid.0[10..], &[0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(gid.to_ip(), IpAddr::from([192, 0, 2, 7]));
    }

    #[test]
    fn pkey_needs_one_full_member() {
        assert!(PKey(0xffff).matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8001).matches(PKey(0x8002)));
    }
}
