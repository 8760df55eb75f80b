//! Interfaces through ioctls and `/proc`, for sandboxes without netlink. `getifaddrs` is no
//! alternative: C libraries implement it with netlink.

use super::interface::{Address, Interface};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

/// The maximum number of addresses that `SIOCGIFCONF` returns.
const MAX_ADDRESSES: usize = 1024;

/// Address flags from Linux's if_addr.h, as /proc/net/if_inet6 shows them.
const DAD_FAILED: u32 = 0x08;
const OPTIMISTIC: u32 = 0x04;
const TENTATIVE: u32 = 0x40;

/// Returns all interfaces with their addresses, unordered.
pub(super) fn list() -> io::Result<Vec<Interface>> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), None)?;
    let mut interfaces = fs::read_to_string("/proc/net/dev")?
        .lines()
        .filter_map(|line| line.split_once(':'))
        // An interface that disappears meanwhile is omitted.
        .filter_map(|(name, _)| interface(&socket, name.trim()).ok())
        .collect::<Vec<_>>();
    for entry in addresses_v4(&socket)? {
        let (name, Some(ip)) = (name_of(&entry), address_of(&entry)) else {
            continue;
        };
        // An alias, eth0:1, is an address of eth0.
        let base = name.split(':').next().unwrap_or(&name);
        if let Some(interface) = interfaces.iter_mut().find(|i| i.name == base) {
            let prefix_len = prefix_v4(&socket, entry).unwrap_or(32);
            let address = Address::new(ip.into(), interface.index, prefix_len);
            interface.addresses.push(address);
        }
    }
    // Without IPv6 this file does not exist.
    let v6 = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    for (index, ip, prefix_len) in v6.lines().filter_map(address_v6) {
        if let Some(interface) = interfaces.iter_mut().find(|i| i.index == index) {
            let address = Address::new(IpAddr::V6(ip), index, prefix_len);
            interface.addresses.push(address);
        }
    }
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    if let Some(name) = default_route(&routes)
        && let Some(interface) = interfaces.iter_mut().find(|i| i.name == name)
    {
        interface.has_default_route = true;
    }
    Ok(interfaces)
}

/// Returns an `ifreq` with only a name.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` consists of integers, raw pointers and a union of these, for which zeroes are
    // valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Queries a property of an interface or of one of its addresses.
fn query(
    socket: &Socket,
    mut request: libc::ifreq,
    what: libc::c_ulong,
) -> io::Result<libc::ifreq> {
    // SAFETY: all requests made here (SIOCGIF...) read and write one ifreq, which outlives the
    // call.
    let r = unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) };
    if r == 0 {
        Ok(request)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn interface(socket: &Socket, name: &str) -> io::Result<Interface> {
    let index = query(socket, request(name)?, libc::SIOCGIFINDEX)?;
    let mtu = query(socket, request(name)?, libc::SIOCGIFMTU)?;
    let flags = query(socket, request(name)?, libc::SIOCGIFFLAGS)?;
    let hardware = query(socket, request(name)?, libc::SIOCGIFHWADDR)?;
    // SAFETY: each request succeeded, so the kernel filled the member that is read.
    let (index, mtu, flags, hardware) = unsafe {
        (
            index.ifr_ifru.ifru_ifindex,
            mtu.ifr_ifru.ifru_mtu,
            flags.ifr_ifru.ifru_flags,
            hardware.ifr_ifru.ifru_hwaddr,
        )
    };
    let flag = |bit: libc::c_int| libc::c_int::from(flags) & bit != 0;
    let six_bytes = matches!(
        hardware.sa_family,
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK
    );
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
        *to = from as u8;
    }
    Ok(Interface {
        index: u32::try_from(index).unwrap_or(0),
        name: name.to_owned(),
        up: flag(libc::IFF_UP),
        running: flag(libc::IFF_UP) && flag(libc::IFF_RUNNING),
        mtu: u32::try_from(mtu).unwrap_or(0),
        mac: six_bytes.then_some(mac),
        addresses: Vec::new(),
        has_default_route: false,
        loopback: flag(libc::IFF_LOOPBACK),
    })
}

/// Returns the IPv4 address in an `ifreq` that the kernel filled with one.
fn address_of(request: &libc::ifreq) -> Option<Ipv4Addr> {
    // SAFETY: `ifreq` was zeroed and then filled by the kernel; every bit pattern is a valid
    // sockaddr.
    let address = unsafe { request.ifr_ifru.ifru_addr };
    if i32::from(address.sa_family) != libc::AF_INET {
        return None;
    }
    // sockaddr_in: two bytes of port, then the address.
    let byte = |i: usize| address.sa_data[2 + i] as u8;
    Some(Ipv4Addr::new(byte(0), byte(1), byte(2), byte(3)))
}

fn name_of(request: &libc::ifreq) -> String {
    let bytes = request.ifr_name.iter().map(|c| *c as u8);
    let name: Vec<u8> = bytes.take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&name).into_owned()
}

/// Returns all IPv4 addresses with their interface names.
fn addresses_v4(socket: &Socket) -> io::Result<Vec<libc::ifreq>> {
    let mut buffer = vec![request("")?; MAX_ADDRESSES];
    let mut list = libc::ifconf {
        ifc_len: size_of_val(buffer.as_slice()) as libc::c_int,
        ifc_ifcu: libc::__c_anonymous_ifc_ifcu {
            ifcu_req: buffer.as_mut_ptr(),
        },
    };
    // SAFETY: the list holds the address and length of `buffer`, which outlives the call.
    let r = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFCONF as _, &raw mut list) };
    if r != 0 {
        return Err(io::Error::last_os_error());
    }
    let count = usize::try_from(list.ifc_len).unwrap_or(0) / size_of::<libc::ifreq>();
    buffer.truncate(count);
    Ok(buffer)
}

/// Returns the prefix length of one address. `entry` includes the address: with the name alone, the
/// kernel would report the first address of the interface.
fn prefix_v4(socket: &Socket, entry: libc::ifreq) -> Option<u8> {
    let answer = query(socket, entry, libc::SIOCGIFNETMASK).ok()?;
    let mask = address_of(&answer)?;
    Some(mask.to_bits().leading_ones() as u8)
}

/// Parses a line of /proc/net/if_inet6: address, interface, prefix length, scope, flags (all
/// hexadecimal), name. Returns `None` for an address that may not be used.
fn address_v6(line: &str) -> Option<(u32, Ipv6Addr, u8)> {
    let mut fields = line.split_whitespace();
    let bits = u128::from_str_radix(fields.next()?, 16).ok()?;
    let index = u32::from_str_radix(fields.next()?, 16).ok()?;
    let prefix_len = u8::from_str_radix(fields.next()?, 16).ok()?;
    let flags = u32::from_str_radix(fields.nth(1)?, 16).ok()?;
    let pending = flags & TENTATIVE != 0 && flags & OPTIMISTIC == 0 || flags & DAD_FAILED != 0;
    (!pending).then(|| (index, Ipv6Addr::from_bits(bits), prefix_len))
}

/// Returns the interface of the default route with the lowest metric in /proc/net/route: name,
/// destination, gateway, flags, reference count, use, metric, mask.
fn default_route(routes: &str) -> Option<&str> {
    routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [name, destination, _, _, _, _, metric, mask, ..] = fields[..] else {
                return None;
            };
            let default = destination == "00000000" && mask == "00000000";
            let metric: u32 = metric.parse().ok()?;
            default.then_some((metric, name))
        })
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_with_the_lowest_metric_counts() {
        let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
            eth1 00000000 0100A8C0 0003 0 0 200 00000000 0 0 0\n\
            eth0 00000000 0100A8C0 0003 0 0 100 00000000 0 0 0\n\
            eth2 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        assert_eq!(default_route(routes), Some("eth0"));
        assert_eq!(default_route(""), None);
    }

    #[test]
    fn tentative_ipv6_addresses_are_left_out() {
        let line = "fe800000000000000000000000000001 0a 40 20 80     eth0";
        let ip = "fe80::1".parse().unwrap();
        assert_eq!(address_v6(line), Some((10, ip, 64)));
        assert_eq!(address_v6(&line.replace(" 80 ", " c0 ")), None);
        assert_eq!(address_v6("nonsense"), None);
    }
}
