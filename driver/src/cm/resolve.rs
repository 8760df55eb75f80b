//! From IP addresses to devices: the device of an address, and the source for a destination.

use crate::device::{Device, PORT, PortState, all_devices, watched_devices};
use crate::ports::route::{self, udp_socket, with_port};
use socket2::SockAddr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use urxe_net::{LocalAddress, ROCE_PORT};
use urxe_proto::ids::Gid;
use urxe_proto::mtu::Mtu;

/// An address of a device.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The device.
    pub device: Arc<Device>,
    /// The index of the address in the device's GID table.
    pub gid_index: u8,
    /// The address.
    pub address: LocalAddress,
}

impl Bound {
    /// The port number: a device has one port.
    pub const PORT: u8 = PORT;

    fn new(device: Arc<Device>, index: usize, ip: IpAddr) -> Bound {
        Bound {
            // A GID table has at most 256 entries.
            gid_index: index as u8,
            address: LocalAddress::new(ip, device.interface_index()),
            device,
        }
    }

    /// Returns the address as a GID.
    pub fn gid(&self) -> Gid {
        Gid::from_ip(self.address.ip())
    }
}

/// The path to a destination.
#[derive(Clone, Debug)]
pub struct Path {
    /// The local GID.
    pub source: Gid,
    /// The peer's GID.
    pub destination: Gid,
    /// The largest path MTU that the interface supports.
    pub mtu: Mtu,
    /// The time to live, or hop limit, of packets.
    pub hop_limit: u8,
    /// The type of service, or traffic class.
    pub traffic_class: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The service level.
    pub sl: u8,
    /// The static rate; the values of `enum ibv_rate`.
    pub rate: u8,
    /// The maximum time that a packet is in flight: 4.096 us x 2^n.
    pub packet_life_time: u8,
}

/// Errors of resolving an address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// A link-local address has no scope: EINVAL.
    #[error("{0} is a link-local address: append the interface, as in `{0}%eth0`")]
    NoScope(IpAddr),
    /// The address does not belong to this host: EADDRNOTAVAIL.
    #[error("{0} is not an address of this host")]
    NotHere(IpAddr),
    /// The address belongs to an interface without a device: ENODEV.
    #[error("{0} belongs to an interface without a device: see `urxe devices`")]
    NoDevice(IpAddr),
    /// No device is active: ENODEV.
    #[error("no device is active: see `urxe devices`")]
    NoneActive,
    /// Source and destination have different IP versions: EINVAL.
    #[error("{from} cannot reach {to}: they are of different IP versions")]
    Versions {
        /// The source.
        from: IpAddr,
        /// The destination.
        to: IpAddr,
    },
    /// The kernel has no route: usually ENETUNREACH.
    #[error("there is no route to {to}: {source}")]
    NoRoute {
        /// The destination.
        to: IpAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces: {0}")]
    System(#[source] io::Error),
}

impl ResolveError {
    /// Returns the error number that applications get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoScope(_) | Self::Versions { .. } => libc::EINVAL,
            Self::NotHere(_) => libc::EADDRNOTAVAIL,
            Self::NoDevice(_) | Self::NoneActive => libc::ENODEV,
            Self::NoRoute { source, .. } => source.raw_os_error().unwrap_or(libc::ENETUNREACH),
            Self::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Returns the interface index of a link-local address, and 0 for any other address.
fn scope(address: &SocketAddr) -> Result<u32, ResolveError> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => match v6.scope_id() {
            0 => Err(ResolveError::NoScope(address.ip())),
            scope => Ok(scope),
        },
        _ => Ok(0),
    }
}

/// Returns the device that has an address of this host; the port is ignored.
///
/// A loopback address is found even if the process has not selected the loopback device. Only the
/// datagram sockets of rsockets, which show no device to the program, look up loopback addresses.
/// The connection manager does not.
///
/// # Errors
/// See [`ResolveError`].
pub fn device_of(address: SocketAddr) -> Result<Bound, ResolveError> {
    let scope = scope(&address)?;
    let ip = address.ip().to_canonical();
    let on_link = |device: &Device| scope == 0 || device.interface_index() == scope;
    let devices = match is_loopback(ip) {
        true => all_devices(),
        false => watched_devices(),
    };
    let devices = devices.map_err(ResolveError::System)?;
    if let Some(bound) = with_address(devices, ip, on_link) {
        return Ok(bound);
    }
    // Only an address of this host can be bound.
    match route::is_of_this_host(address) {
        Ok(true) => Err(ResolveError::NoDevice(ip)),
        _ => Err(ResolveError::NotHere(ip)),
    }
}

/// Returns the device that has a GID; `None` if no device of this host has it. A GID has no scope:
/// if two devices have the same link-local address, the first one is returned.
///
/// # Errors
/// [`ResolveError::System`].
pub(crate) fn device_of_gid(gid: Gid) -> Result<Option<Bound>, ResolveError> {
    let devices = watched_devices().map_err(ResolveError::System)?;
    Ok(with_address(devices, gid.to_ip(), |_| true))
}

/// Returns the first device with an address for which `suits` holds.
fn with_address(
    devices: Vec<Arc<Device>>,
    ip: IpAddr,
    suits: impl Fn(&Device) -> bool,
) -> Option<Bound> {
    let mut found = devices.into_iter().filter(|device| suits(device));
    found.find_map(|device| {
        let gids = device.gids();
        let (index, ip) = gids.into_iter().find(|(_, gid)| *gid == ip)?;
        Some(Bound::new(device, index, ip))
    })
}

/// Returns whether an address is one of this host's loopback addresses.
pub(crate) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Returns whether a bind to an address leaves the device open: the unspecified address and, as in
/// the kernel's `cma_any_addr`, loopback addresses.
pub(crate) fn is_of_any_device(ip: IpAddr) -> bool {
    ip.is_unspecified() || is_loopback(ip)
}

/// Returns the device for a loopback destination: the first active one that has a global address of
/// the destination's IP version, or else the first active one.
///
/// # Errors
/// [`ResolveError::NoneActive`], or [`ResolveError::System`].
pub(crate) fn first_active(destination: IpAddr) -> Result<Bound, ResolveError> {
    let v4 = destination.to_canonical().is_ipv4();
    let suits = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => v4,
        IpAddr::V6(ip) => !v4 && !ip.is_unicast_link_local(),
    };
    let mut devices = watched_devices().map_err(ResolveError::System)?;
    devices.retain(|device| device.port_state() == PortState::Active);
    let first = |suits: &dyn Fn(&IpAddr) -> bool| {
        devices.iter().find_map(|device| {
            let (index, ip) = device.gids().into_iter().find(|(_, ip)| suits(ip))?;
            Some(Bound::new(Arc::clone(device), index, ip))
        })
    };
    first(&suits)
        .or_else(|| first(&|_| true))
        .ok_or(ResolveError::NoneActive)
}

/// Returns the kernel's source address for a destination.
///
/// # Errors
/// See [`ResolveError`].
pub fn source_for(destination: SocketAddr) -> Result<SocketAddr, ResolveError> {
    scope(&destination)?;
    let to = destination.ip();
    let ask = || -> io::Result<SocketAddr> {
        let socket = udp_socket(to)?;
        // Connecting a datagram socket looks the route up and sends nothing.
        socket.connect(&SockAddr::from(with_port(destination, ROCE_PORT)))?;
        let source = socket.local_addr()?.as_socket();
        source.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    };
    let source = ask().map_err(|source| ResolveError::NoRoute { to, source })?;
    Ok(with_port(source, 0))
}

/// Checks that the kernel has a route from `source` to `destination`.
///
/// # Errors
/// See [`ResolveError`].
pub fn check_route(source: SocketAddr, destination: SocketAddr) -> Result<(), ResolveError> {
    scope(&destination)?;
    let (from, to) = (source.ip(), destination.ip());
    if from.is_ipv4() != to.is_ipv4() {
        return Err(ResolveError::Versions { from, to });
    }
    route::check_route(source, destination).map_err(|source| ResolveError::NoRoute { to, source })
}

/// Returns the effective destination: the loopback address for an unspecified one.
pub fn destination(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(v6) if v6.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 7)
    }

    #[test]
    fn an_interface_address_resolves_to_its_device() {
        let bound = device_of(address("127.0.0.1")).unwrap();
        assert!(bound.device.is_loopback());
        let index = usize::from(bound.gid_index);
        assert_eq!(bound.device.gid(index), Some(bound.gid()));
        let mapped = device_of(address("::ffff:127.0.0.1")).unwrap();
        assert!(Arc::ptr_eq(&mapped.device, &bound.device));
    }

    #[test]
    fn foreign_and_deviceless_addresses_have_different_errors() {
        let elsewhere = device_of(address("192.0.2.1")).unwrap_err();
        assert_eq!(elsewhere.errno(), libc::EADDRNOTAVAIL);
        // All of 127.0.0.0/8 is local, but only the addresses of an interface have GIDs.
        let nowhere = device_of(address("127.9.9.9")).unwrap_err();
        assert_eq!(nowhere.errno(), libc::ENODEV);
    }

    #[test]
    fn link_local_addresses_need_a_scope() {
        for result in [
            device_of(address("fe80::1")).map(|_| ()),
            source_for(address("fe80::1")).map(|_| ()),
            check_route(address("fe80::2"), address("fe80::1")),
        ] {
            assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
        }
    }

    #[test]
    fn the_source_address_follows_the_route() {
        let source = source_for(address("127.0.0.1")).unwrap();
        assert_eq!(source, with_port(address("127.0.0.1"), 0));
        check_route(source, address("127.0.0.1")).unwrap();
        let other = check_route(source, address("::1")).unwrap_err();
        assert_eq!(other.errno(), libc::EINVAL);
        // A broadcast address needs `SO_BROADCAST`, which is not set.
        let unreachable = source_for(address("255.255.255.255")).unwrap_err();
        assert!(matches!(unreachable, ResolveError::NoRoute { .. }));
    }

    #[test]
    fn an_unspecified_destination_is_this_host() {
        assert_eq!(destination(address("0.0.0.0")), address("127.0.0.1"));
        assert_eq!(destination(address("::")), address("::1"));
        assert_eq!(destination(address("192.0.2.1")), address("192.0.2.1"));
    }
}
