//! An interface and its addresses.

use crate::address::LocalAddress;
use std::net::IpAddr;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Interface {
    /// The kernel's interface index.
    pub index: u32,
    /// The name, as `ip link` shows it.
    pub name: String,
    /// Whether it is enabled (`IFF_UP`).
    pub up: bool,
    /// Whether it is enabled and has a link (`IFF_RUNNING`): packets can pass.
    pub running: bool,
    /// The MTU: the largest IP packet, in bytes.
    pub mtu: u32,
    /// The Ethernet address; all zeroes for the loopback interface, `None` for tunnels.
    pub mac: Option<[u8; 6]>,
    /// The addresses, IPv4 first, in the kernel's order. Addresses that duplicate address detection
    /// has not accepted (yet) are omitted.
    pub addresses: Vec<Address>,
    /// Whether the default route uses it.
    pub has_default_route: bool,
    /// Whether it is a loopback interface.
    pub loopback: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Address {
    /// The address, with its interface if it is link-local.
    pub local: LocalAddress,
    /// The prefix length of its subnet, in bits.
    pub prefix_len: u8,
}

impl Address {
    pub(super) fn new(ip: IpAddr, interface_index: u32, prefix_len: u8) -> Self {
        Address {
            local: LocalAddress::new(ip, interface_index),
            prefix_len,
        }
    }

    /// The address without the interface.
    pub fn ip(&self) -> IpAddr {
        self.local.ip()
    }

    /// Whether it is valid on its link only (fe80::/10, 169.254.0.0/16).
    pub fn is_link_local(&self) -> bool {
        match self.local.ip() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }
}
