//! Routes: the network path to the peer that an address vector names. Each connected queue pair and
//! each address handle has one.

use super::open::{LocalPort, Ports};
use crate::device::Device;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use urxe_net::{FaultSpec, OpenError, Path, PathOptions, ROCE_PORT};
use urxe_proto::qp::AddressVector;

/// A network path and its local address.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) local: Arc<LocalPort>,
    pub(crate) path: Path,
}

/// An error in the resolution of an address vector.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The address vector has no GID, which RoCE requires (A17.4): EINVAL.
    #[error(
        "the program gave no GID for the peer, and RoCE has no other address: give both programs \
         a GID index (for example `ibv_rc_pingpong -g 0`)"
    )]
    NoPeerGid,
    /// The port has no GID with this index: EINVAL.
    #[error("{device} has no GID with index {index}: `urxe devices` lists them")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The requested index.
        index: u8,
    },
    /// The kernel has no route to the peer: ENETUNREACH, EHOSTUNREACH, or the error of a route of
    /// type `blackhole` or `prohibit`.
    #[error("there is no route from {from} to {to}: {source}")]
    NoRoute {
        /// The local address.
        from: IpAddr,
        /// The address of the peer.
        to: IpAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// The device's sockets cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl RouteError {
    /// The errno that verbs return.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoPeerGid | Self::NoSuchGid { .. } => libc::EINVAL,
            Self::NoRoute { source, .. } => source.raw_os_error().unwrap_or(libc::ENETUNREACH),
            Self::Open(error) => error.errno(),
        }
    }
}

impl Route {
    /// Resolves `av` to a route. Opens the sockets of the local address. Flows with equal keys have
    /// the same UDP source port. `faults` replace those of `URXE_FAULTS`.
    ///
    /// The kernel must have a route to a unicast peer. The link-layer address is not resolved here:
    /// if a host on the link is absent, the retries of its queue pairs are exhausted.
    pub(crate) fn resolve(
        ports: &Ports,
        device: &Device,
        av: &AddressVector,
        flow_key: u32,
        faults: Option<FaultSpec>,
    ) -> Result<Self, RouteError> {
        if !av.is_global || av.dgid.is_zero() {
            return Err(RouteError::NoPeerGid);
        }
        let address = device
            .source(av.sgid_index)
            .ok_or_else(|| RouteError::NoSuchGid {
                device: device.name().to_owned(),
                index: av.sgid_index,
            })?;
        let local = ports.open(address)?;
        let to = av.dgid.to_ip();
        let options = PathOptions {
            flow_key,
            traffic_class: av.traffic_class,
            // The kernel replaces the hop limit of an address vector by that of the route to the
            // peer (`ib_resolve_unicast_gid_dmac`). Programs such as ibv_rc_pingpong rely on it:
            // they set 1, with which no packet would pass a router.
            hop_limit: match to.is_multicast() {
                true => av.hop_limit,
                false => 0,
            },
            flow_label: av.flow_label,
            interface: device.interface_index(),
        };
        let path = local.endpoint().path_with_faults(to, options, faults)?;
        if !to.is_multicast() {
            let (source, destination) = (address.with_port(0), address.peer(to, ROCE_PORT));
            check_route(source, destination).map_err(|source| RouteError::NoRoute {
                from: address.ip(),
                to,
                source,
            })?;
        }
        Ok(Route { local, path })
    }
}

/// Checks that the kernel has a route between two addresses of the same IP version.
///
/// # Errors
/// The error of the system call. From a loopback address to an address of another host, always
/// ENETUNREACH; the kernel's error would depend on the IP version.
pub(crate) fn check_route(source: SocketAddr, destination: SocketAddr) -> io::Result<()> {
    if source.ip().is_loopback() && !is_of_this_host(destination)? {
        return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    let socket = udp_socket(source.ip())?;
    socket.bind(&SockAddr::from(with_port(source, 0)))?;
    // connect(2) on a datagram socket looks up the route and sends nothing.
    socket.connect(&SockAddr::from(with_port(destination, ROCE_PORT)))
}

/// Returns whether an address belongs to this host.
///
/// The kernel's source for a packet to an address of this host is that address. It is another one
/// for a secondary address, which is looked up. That a socket can be bound to an address is not
/// enough: with the sysctl `ip_nonlocal_bind`, it can be to any.
pub(crate) fn is_of_this_host(address: SocketAddr) -> io::Result<bool> {
    let socket = udp_socket(address.ip())?;
    if socket.bind(&SockAddr::from(with_port(address, 0))).is_err() {
        return Ok(false);
    }
    let ip = address.ip().to_canonical();
    if ip.is_loopback() {
        return Ok(true);
    }
    let socket = udp_socket(address.ip())?;
    let found = socket.connect(&SockAddr::from(with_port(address, ROCE_PORT)));
    let source = found.and_then(|()| socket.local_addr());
    if source.is_ok_and(|source| source.as_socket().is_some_and(|it| it.ip() == address.ip())) {
        return Ok(true);
    }
    let interfaces = urxe_net::list_interfaces()?;
    let mut addresses = interfaces.iter().flat_map(|it| &it.addresses);
    Ok(addresses.any(|known| known.ip() == ip))
}

/// Returns the address with another port.
pub(crate) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Opens a UDP socket of the IP version of `like`.
pub(crate) fn udp_socket(like: IpAddr) -> io::Result<Socket> {
    let domain = match like {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP))
}
