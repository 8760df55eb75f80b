//! The host's network interfaces, their addresses, and the detection of changes.

mod interface;
mod ioctl;
mod netlink;

use std::cmp::Reverse;
use std::io;

pub use interface::{Address, Interface};
pub use netlink::Monitor;

/// Returns all interfaces: the one with the default route first, the loopback interface last, the
/// others ordered by index.
///
/// # Errors
/// When neither netlink nor the ioctls report them.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut interfaces = netlink::list().or_else(|error| {
        tracing::debug!(%error, "no netlink: listing interfaces by ioctls");
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
    use std::net::IpAddr;

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
    fn netlink_and_ioctls_report_the_same() {
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
