//! Interfaces through netlink, the kernel's interface to its network configuration.

use super::interface::{Address, Interface};
use crate::sys::set_option;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// The timeout for answers. The kernel answers at once, but a sandbox may drop requests silently.
const ANSWER_SECONDS: u32 = 2;

/// Addresses reserved for documentation, which only a default route matches (RFC 5737, RFC 3849).
const DOCUMENTATION_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Returns all interfaces with their addresses, unordered.
pub(super) fn list() -> io::Result<Vec<Interface>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let timeout = libc::timeval {
        tv_sec: ANSWER_SECONDS.into(),
        tv_usec: 0,
    };
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeout)?;

    let mut interfaces = Vec::new();
    let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
    query(&socket, links, NLM_F_DUMP, |message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            interfaces.extend(interface(link));
        }
    })?;
    let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    query(&socket, addresses, NLM_F_DUMP, |message| {
        if let RouteNetlinkMessage::NewAddress(message) = message {
            let index = message.header.index;
            let owner = interfaces
                .iter_mut()
                .find(|i: &&mut Interface| i.index == index);
            if let (Some(owner), Some(address)) = (owner, address(&message)) {
                owner.addresses.push(address);
            }
        }
    })?;
    let outgoing = DOCUMENTATION_ADDRESSES
        .iter()
        .find_map(|destination| outgoing_interface(&socket, *destination));
    for interface in &mut interfaces {
        interface.has_default_route = Some(interface.index) == outgoing && !interface.loopback;
    }
    Ok(interfaces)
}

fn interface(link: LinkMessage) -> Option<Interface> {
    let flags = link.header.flags;
    let mut name = None;
    let mut mtu = 0;
    let mut mac = None;
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text),
            LinkAttribute::Mtu(bytes) => mtu = bytes,
            LinkAttribute::Address(bytes) => mac = bytes.try_into().ok(),
            _ => {}
        }
    }
    Some(Interface {
        index: link.header.index,
        name: name?,
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Up | LinkFlags::Running),
        mtu,
        mac,
        addresses: Vec::new(),
        has_default_route: false,
        loopback: flags.contains(LinkFlags::Loopback),
    })
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    let (mut local, mut shared) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link «address» is the peer's.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => shared = Some(*ip),
            AddressAttribute::Flags(all) => flags |= *all,
            _ => {}
        }
    }
    let ip = local.or(shared)?;
    let pending = flags.contains(AddressFlags::Tentative)
        && !flags.contains(AddressFlags::Optimistic)
        || flags.contains(AddressFlags::Dadfailed);
    let header = &message.header;
    (!pending).then(|| Address::new(ip, header.index, header.prefix_len))
}

/// Returns the interface by which packets to `destination` leave.
fn outgoing_interface(socket: &Socket, destination: IpAddr) -> Option<u32> {
    let mut request = RouteMessage::default();
    (
        request.header.address_family,
        request.header.destination_prefix_length,
    ) = match destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    request
        .attributes
        .push(RouteAttribute::Destination(destination.into()));
    let mut outgoing = None;
    // Without a route the answer is an error.
    let _ = query(
        socket,
        RouteNetlinkMessage::GetRoute(request),
        0,
        |message| {
            if let RouteNetlinkMessage::NewRoute(route) = message
                && route.header.kind == RouteType::Unicast
            {
                outgoing = route
                    .attributes
                    .iter()
                    .find_map(|attribute| match attribute {
                        RouteAttribute::Oif(index) => Some(*index),
                        _ => None,
                    });
            }
        },
    );
    outgoing
}

/// Sends a request, and calls `f` with each part of the answer: one, or for a dump any number.
fn query(
    socket: &Socket,
    request: RouteNetlinkMessage,
    flags: u16,
    mut f: impl FnMut(RouteNetlinkMessage),
) -> io::Result<()> {
    let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(request));
    packet.header.flags = NLM_F_REQUEST | flags;
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => {
                    return match error.code {
                        Some(_) => Err(error.to_io()),
                        None => Ok(()),
                    };
                }
                NetlinkPayload::InnerMessage(inner) => {
                    f(inner);
                    if flags & NLM_F_DUMP == 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
            // Messages start at multiples of 4 bytes.
            let len = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(len.max(4)..).unwrap_or(&[]);
        }
    }
}

const LINKS_AND_ADDRESSES: libc::c_int =
    libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

const ROUTES: libc::c_int = libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE
    | libc::RTMGRP_IPV4_RULE
    | 1 << (libc::RTNLGRP_IPV6_RULE - 1);

/// Reports changes of interfaces and addresses.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Subscribes to changes.
    ///
    /// # Errors
    /// When netlink is refused: then changes can only be found by listing the interfaces again.
    pub fn new() -> io::Result<Monitor> {
        Monitor::of(LINKS_AND_ADDRESSES)
    }

    /// Subscribes to changes of all that [`super::list`] returns: also of routes and their rules.
    ///
    /// # Errors
    /// As for [`Monitor::new`].
    pub fn of_everything() -> io::Result<Monitor> {
        Monitor::of(LINKS_AND_ADDRESSES | ROUTES)
    }

    fn of(groups: libc::c_int) -> io::Result<Monitor> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, groups as u32))?;
        socket.set_non_blocking(true)?;
        Ok(Monitor { socket })
    }

    /// The descriptor that is readable when something has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether anything has changed since the last call.
    pub fn changed(&self) -> bool {
        let mut changed = false;
        let mut buffer = [0_u8; 4096];
        loop {
            match self.socket.recv(&mut &mut buffer[..], 0) {
                Ok(_) => changed = true,
                // There were more changes than the socket's buffer holds.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return changed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_is_reported_without_one() {
        let monitor = Monitor::new().unwrap();
        assert!(!monitor.changed());
        assert!(!Monitor::of_everything().unwrap().changed());
    }
}
