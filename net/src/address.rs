//! Addresses of this host, and the UDP ports of RoCEv2.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The UDP port of RoCEv2 (A17.9.2).
pub const ROCE_PORT: u16 = 4791;

/// The lowest UDP port that RoCEv2 senders use; the highest is 65535 (A17.9.2).
pub const FIRST_SOURCE_PORT: u16 = 0xc000;

/// The default time to live, for an address handle that sets none.
pub const DEFAULT_TTL: u8 = 64;

/// An address of this host. A link-local address includes its interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LocalAddress {
    ip: IpAddr,
    scope_id: u32,
}

impl LocalAddress {
    /// Returns the address. `interface_index` matters for link-local IPv6 addresses only.
    pub fn new(ip: IpAddr, interface_index: u32) -> Self {
        let scope_id = if is_link_local(ip) {
            interface_index
        } else {
            0
        };
        LocalAddress { ip, scope_id }
    }

    /// Returns a multicast group on an interface. The same group on another interface differs.
    pub fn group(ip: IpAddr, interface_index: u32) -> Self {
        LocalAddress {
            ip,
            scope_id: interface_index,
        }
    }

    /// The address without the interface.
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// The interface index of a link-local address or a group, else 0.
    pub fn scope_id(self) -> u32 {
        self.scope_id
    }

    /// Returns this address with a port.
    pub fn with_port(self, port: u16) -> SocketAddr {
        self.peer(self.ip, port)
    }

    /// Returns the socket address of a peer. A link-local peer gets the interface of this address.
    pub fn peer(self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(v6) => {
                let link = is_link_local(ip) || v6.is_multicast();
                let scope_id = if link { self.scope_id } else { 0 };
                SocketAddrV6::new(v6, port, 0, scope_id).into()
            }
        }
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip)?;
        if self.scope_id != 0 {
            write!(f, "%{}", self.scope_id)?;
        }
        Ok(())
    }
}

/// Whether a socket address with `ip` needs an interface index.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_local_addresses_keep_their_interface() {
        let lo = LocalAddress::new([127, 0, 0, 1].into(), 1);
        assert_eq!(lo.scope_id(), 0);
        let link = LocalAddress::new("fe80::1".parse().unwrap(), 3);
        assert_eq!(link.to_string(), "fe80::1%3");
        let peer = link.peer("fe80::2".parse().unwrap(), ROCE_PORT);
        assert_eq!(peer.to_string(), "[fe80::2%3]:4791");
        let far = link.peer("2001:db8::2".parse().unwrap(), ROCE_PORT);
        assert_eq!(far.to_string(), "[2001:db8::2]:4791");
    }
}
