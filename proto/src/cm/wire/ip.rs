//! The RDMA IP CM service (annex A11): IP addresses and ports in service IDs and private data.

use crate::ids::Gid;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A service ID, which names the service of a listener or a request (12.7.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServiceId(pub u64);

/// The port spaces of the RDMA CM.
///
/// The values are those of `enum rdma_port_space`, and bits 16 to 31 of service IDs (A11.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand.
    IpoIb = 0x0002,
    /// Reliable connections: protocol 6, TCP.
    Tcp = 0x0106,
    /// Datagrams: protocol 17, UDP.
    Udp = 0x0111,
    /// Native InfiniBand addresses.
    Ib = 0x013f,
}

impl PortSpace {
    /// All port spaces.
    pub const ALL: [PortSpace; 4] = [Self::IpoIb, Self::Tcp, Self::Udp, Self::Ib];

    /// Returns the port space with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&p| p as u32 == number)
    }
}

impl ServiceId {
    /// Returns the service ID of a port.
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        ServiceId((space as u64) << 16 | port as u64)
    }

    /// Returns the port space and the port, if this is a service ID of the RDMA IP CM service.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = u32::try_from(self.0 >> 16).ok()?;
        Some((PortSpace::from_number(space)?, self.0 as u16))
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{space:?} port {port}"),
            None => write!(f, "service {:#018x}", self.0),
        }
    }
}

/// The header before the program's private data in a REQ or SIDR_REQ (A11.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// The address and port of the requester.
    pub source: SocketAddr,
    /// The destination address; its port is in the service ID.
    pub destination: IpAddr,
}

/// Why private data do not start with a valid header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpHeaderError {
    /// There are too few bytes.
    #[error(
        "{have} bytes are too short for an RDMA IP CM header, which takes {}",
        IpHeader::LEN
    )]
    TooShort {
        /// The number of bytes.
        have: usize,
    },
    /// The version of the header is not 0.0.
    #[error("the RDMA IP CM header has version {0:#04x}, not 0")]
    Version(u8),
    /// The IP version is neither 4 nor 6.
    #[error("the RDMA IP CM header has IP version {0}, not 4 or 6")]
    IpVersion(u8),
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    /// Major version (4 bits), minor version (4).
    version: u8,
    /// IP version (4 bits), reserved (4).
    ip_version: u8,
    source_port: U16,
    source: [u8; 16],
    destination: [u8; 16],
}

/// The offset of an IPv4 address in its 16 bytes.
const IPV4_AT: usize = 12;
const VERSION: u8 = 0;

impl IpHeader {
    /// The length of the header, in bytes.
    pub const LEN: usize = size_of::<Raw>();

    /// Reads the header from the start of `bytes`; returns it and the program's private data.
    ///
    /// # Errors
    /// [`IpHeaderError`] when `bytes` are too short, or of an unsupported version.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), IpHeaderError> {
        let Ok((raw, rest)) = Raw::ref_from_prefix(bytes) else {
            return Err(IpHeaderError::TooShort { have: bytes.len() });
        };
        if raw.version != VERSION {
            return Err(IpHeaderError::Version(raw.version));
        }
        let address: fn([u8; 16]) -> IpAddr = match raw.ip_version >> 4 {
            4 => ipv4,
            6 => |bytes| Ipv6Addr::from(bytes).into(),
            other => return Err(IpHeaderError::IpVersion(other)),
        };
        let header = IpHeader {
            source: SocketAddr::new(address(raw.source), raw.source_port.get()),
            destination: address(raw.destination),
        };
        Ok((header, rest))
    }

    /// Encodes the header. Its IP version is that of the source address.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let ip_version = if self.source.is_ipv4() { 4 } else { 6 };
        let raw = Raw {
            version: VERSION,
            ip_version: ip_version << 4,
            source_port: U16::new(self.source.port()),
            source: field(self.source.ip()),
            destination: field(self.destination),
        };
        zerocopy::transmute!(raw)
    }
}

/// Returns the local address for which a listener must listen to get a request.
///
/// A request for a loopback address is sent from an address of the host to the same address, since
/// a loopback address leads to any active device. Only the header in its private data has the
/// loopback address. A request from another host is for the address to which it was sent, whatever
/// its header states.
pub fn requested_address(local: Gid, remote: Gid, private_data: &[u8]) -> Gid {
    let destination = match IpHeader::parse(private_data) {
        Ok((header, _)) if local == remote => header.destination.to_canonical(),
        _ => return local,
    };
    match destination.is_loopback() {
        true => Gid::from_ip(destination),
        false => local,
    }
}

fn ipv4(bytes: [u8; 16]) -> IpAddr {
    let [.., a, b, c, d] = bytes;
    IpAddr::from([a, b, c, d])
}

/// Encodes an address in 16 bytes.
fn field(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[IPV4_AT..].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}
