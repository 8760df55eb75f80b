//! Headers of rsocket datagrams.
//!
//! Between queue pairs a header carries the sender's address and port. Over UDP it carries the
//! number of the sender's queue pair, until both sides know the other's.

use super::wire::array;
use crate::ids::Qpn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The first 4 bytes of an rsocket datagram over UDP.
const TAG: u32 = 0x5555_5555;
const V4: u8 = 4;
const V6: u8 = 6;
const OP_DATA: u8 = 0;
const OP_CONTROL: u8 = 7;

/// An encoded header of at most [`Header::MAX_LEN`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    bytes: [u8; Header::MAX_LEN],
    len: usize,
}

impl Header {
    /// The length of the longest header, in bytes.
    pub const MAX_LEN: usize = 28;

    /// The encoded bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn of(parts: &[&[u8]]) -> Self {
        let mut header = Header {
            bytes: [0; Self::MAX_LEN],
            len: 0,
        };
        for part in parts {
            header.bytes[header.len..header.len + part.len()].copy_from_slice(part);
            header.len += part.len();
        }
        header
    }
}

/// The length of a header between queue pairs, for an IP version.
const fn source_len(version: u8) -> usize {
    if version == V4 { 8 } else { 24 }
}

/// Encodes the header between queue pairs: the source address of the datagram.
pub fn source_header(source: SocketAddr) -> Header {
    let port = source.port().to_be_bytes();
    match source {
        SocketAddr::V4(v4) => Header::of(&[&[V4, 8], &port, &v4.ip().octets()]),
        SocketAddr::V6(v6) => Header::of(&[
            &[V6, 24],
            &port,
            // The flow information is copied as stored, in whatever byte order.
            &v6.flowinfo().to_ne_bytes(),
            &v6.ip().octets(),
        ]),
    }
}

/// Parses the header of a datagram between queue pairs; returns the source and the header length.
///
/// `None` when the header is invalid.
pub fn parse_source(datagram: &[u8]) -> Option<(SocketAddr, usize)> {
    let [version @ (V4 | V6), len, ..] = *datagram else {
        return None;
    };
    let expected = source_len(version);
    if usize::from(len) != expected || datagram.len() < expected {
        return None;
    }
    let port = u16::from_be_bytes(array(datagram, 2));
    let source = match version {
        V4 => SocketAddr::from((array::<4>(datagram, 4), port)),
        _ => {
            let flow = u32::from_ne_bytes(array(datagram, 4));
            let ip = Ipv6Addr::from(array::<16>(datagram, 8));
            SocketAddrV6::new(ip, port, flow, 0).into()
        }
    };
    Some((source, expected))
}

/// The header of a datagram over UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpHeader {
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's address, as configured at the sender.
    pub address: IpAddr,
    /// Whether data follows. A header without data answers one with data.
    pub data: bool,
}

/// The length of a header over UDP, for an IP version.
const fn udp_header_len(version: u8) -> usize {
    if version == V4 { 16 } else { 28 }
}

impl UdpHeader {
    /// Encodes the header.
    pub fn header(&self) -> Header {
        let op = if self.data { OP_DATA } else { OP_CONTROL };
        let (tag, qpn) = (TAG.to_be_bytes(), self.qpn.get().to_be_bytes());
        match self.address {
            IpAddr::V4(v4) => Header::of(&[&tag, &[V4, op, 16, 0], &qpn, &v4.octets()]),
            IpAddr::V6(v6) => Header::of(&[&tag, &[V6, op, 28, 0], &qpn, &v6.octets()]),
        }
    }

    /// Parses the header of a datagram over UDP; returns it and its length.
    ///
    /// `None` when it is not an rsocket datagram.
    pub fn parse(datagram: &[u8]) -> Option<(Self, usize)> {
        let [_, _, _, _, version @ (V4 | V6), op, len, ..] = *datagram else {
            return None;
        };
        let expected = udp_header_len(version);
        let fits = usize::from(len) == expected && datagram.len() >= expected;
        if !fits || u32::from_be_bytes(array(datagram, 0)) != TAG {
            return None;
        }
        let data = match op {
            OP_DATA => true,
            OP_CONTROL => false,
            _ => return None,
        };
        let address = match version {
            V4 => Ipv4Addr::from(array::<4>(datagram, 12)).into(),
            _ => Ipv6Addr::from(array::<16>(datagram, 12)).into(),
        };
        let qpn = Qpn::new(u32::from_be_bytes(array(datagram, 8)));
        Some((UdpHeader { qpn, address, data }, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> [SocketAddr; 2] {
        ["192.0.2.1:7174", "[2001:db8::1]:7174"].map(|text| text.parse().unwrap())
    }

    #[test]
    fn source_header_round_trips() {
        for source in addresses() {
            let datagram = [source_header(source).bytes(), b"data"].concat();
            assert_eq!(
                parse_source(&datagram),
                Some((source, datagram.len() - 4)),
                "{source}"
            );
            for cut in 0..datagram.len() - 4 {
                assert_eq!(parse_source(&datagram[..cut]), None);
            }
        }
        let [v4, _] = addresses();
        assert_eq!(source_header(v4).bytes(), [4, 8, 28, 6, 192, 0, 2, 1]);
        assert_eq!(parse_source(&[4, 9, 28, 6, 192, 0, 2, 1, 0]), None);
    }

    #[test]
    fn udp_header_round_trips() {
        for source in addresses() {
            for data in [false, true] {
                let peer_data = UdpHeader {
                    qpn: Qpn::new(0x12_3456),
                    address: source.ip(),
                    data,
                };
                let header = peer_data.header();
                assert_eq!(
                    UdpHeader::parse(header.bytes()),
                    Some((peer_data, header.bytes().len()))
                );
                for cut in 0..header.bytes().len() {
                    assert_eq!(UdpHeader::parse(&header.bytes()[..cut]), None);
                }
                let mut other = [0; Header::MAX_LEN];
                other[..header.bytes().len()].copy_from_slice(header.bytes());
                other[0] = 0;
                assert_eq!(UdpHeader::parse(&other), None);
            }
        }
    }
}
