//! The host's network interfaces, their addresses, and the detection of changes.

mod ioctl;
mod netlink;

use super::socket::LocalAddress;
use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;

pub use netlink::Monitor;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
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
pub struct Address {
    /// The address, with its interface if it is link-local.
    pub local: LocalAddress,
    /// The prefix length of its subnet, in bits.
    pub prefix_len: u8,
}

impl Address {
    fn new(ip: IpAddr, interface_index: u32, prefix_len: u8) -> Self {
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

/// Returns all interfaces: the one with the default route first, the loopback interface last, the
/// others ordered by index.
///
/// # Errors
/// When neither netlink nor the ioctls report them.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut interfaces = netlink::list().or_else(|error| {
        tracing::debug!(%error, "no netlink: asking for interfaces the old way");
        ioctl::list()
    })?;
    for interface in &mut interfaces {
        // The sort is stable: within a family the kernel's order stays.
        interface.addresses.sort_by_key(|a| a.ip().is_ipv6());
    }
    interfaces.sort_by_key(|i| (i.loopback, Reverse(i.has_default_route), i.index));
    Ok(interfaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_last_and_has_its_address() {
        let interfaces = list().unwrap();
        let lo = interfaces.last().unwrap();
        assert!(lo.loopback && lo.up);
        assert_eq!(lo.name, "lo");
        assert!(lo.mtu >= 1500);
        let ip = IpAddr::from([127, 0, 0, 1]);
        assert!(lo.addresses.iter().any(|a| a.ip() == ip));
        if let Some(at) = interfaces.iter().position(|i| i.has_default_route) {
            assert_eq!(at, 0);
        }
    }

    #[test]
    fn both_ways_of_asking_tell_the_same() {
        let order = |mut list: Vec<Interface>| {
            for interface in &mut list {
                interface.addresses.sort_by_key(Address::ip);
            }
            list.sort_by_key(|i| i.index);
            list
        };
        let (new, old) = (netlink::list().unwrap(), ioctl::list().unwrap());
        assert_eq!(order(new), order(old));
    }

    #[test]
    fn link_local_addresses_keep_their_interface() {
        let address = Address::new("fe80::1".parse().unwrap(), 7, 64);
        assert!(address.is_link_local());
        assert_eq!(address.local.scope_id(), 7);
        assert!(Address::new([169, 254, 1, 1].into(), 7, 16).is_link_local());
    }
}
