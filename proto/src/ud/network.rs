//! The network header of a received datagram, and its 40-byte form at the start of the receive.

use crate::ids::Gid;
use crate::wire::Grh;
use crate::work::IpVersion;
use std::net::{IpAddr, Ipv4Addr};

/// The offset of an IPv4 header in the 40 bytes. The bytes before it are undefined (A17.4.5).
const IPV4_AT: usize = Grh::LEN - IPV4_LEN;
/// The length of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Version 4 and a header length of 5 words.
const IPV4_VERSION_IHL: u8 = 0x45;
/// The «don't fragment» flag, which RoCEv2 requires (A17.3.1.1).
const DONT_FRAGMENT: u16 = 0x4000;

/// The network layer properties of a received datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkHeader {
    /// The source GID.
    pub source: Gid,
    /// The destination GID: an address of this port, or a multicast group.
    pub destination: Gid,
    /// The IPv6 traffic class, or the IPv4 type of service.
    pub traffic_class: u8,
    /// The IPv6 flow label, 20 bits; 0 if unknown.
    pub flow_label: u32,
    /// The received IPv6 hop limit, or IPv4 time to live.
    pub hop_limit: u8,
}

impl NetworkHeader {
    /// The version of the IP header that carried it.
    pub fn ip_version(&self) -> IpVersion {
        match (self.source.to_ip(), self.destination.to_ip()) {
            (IpAddr::V4(_), IpAddr::V4(_)) => IpVersion::V4,
            _ => IpVersion::V6,
        }
    }

    /// Returns the first 40 bytes of the receive of a datagram.
    ///
    /// `udp_len` is the length in bytes from the UDP header on. The result is the IPv6 header, or
    /// 20 zeroes and an IPv4 header. The checksum of the latter is valid, because programs
    /// recognise IPv4 by it. Its identification is 0, because it is unknown.
    pub fn bytes(&self, udp_len: u16) -> [u8; Grh::LEN] {
        let mut bytes = [0; Grh::LEN];
        match (self.source.to_ip(), self.destination.to_ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = self.ipv4(udp_len, source, destination);
                bytes[IPV4_AT..].copy_from_slice(&header);
            }
            _ => {
                let grh = Grh {
                    traffic_class: self.traffic_class,
                    flow_label: self.flow_label,
                    payload_len: udp_len,
                    next_header: Grh::NEXT_UDP,
                    hop_limit: self.hop_limit,
                    sgid: self.source,
                    dgid: self.destination,
                };
                grh.emit(&mut bytes);
            }
        }
        bytes
    }

    /// Parses the first 40 bytes of the receive of a datagram; `None` when they hold no header.
    ///
    /// An IPv4 header is recognised by its checksum, because the bytes before it are undefined
    /// (A17.4.5).
    pub fn parse(bytes: &[u8; Grh::LEN]) -> Option<NetworkHeader> {
        if let Some(header) = bytes.last_chunk::<IPV4_LEN>()
            && header[0] == IPV4_VERSION_IHL
            && ones_complement_sum(header) == u16::MAX
        {
            let address = |at| {
                let octets: [u8; 4] = [header[at], header[at + 1], header[at + 2], header[at + 3]];
                Gid::from(Ipv4Addr::from(octets))
            };
            return Some(NetworkHeader {
                source: address(12),
                destination: address(16),
                traffic_class: header[1],
                flow_label: 0,
                hop_limit: header[8],
            });
        }
        let (grh, _) = Grh::parse(bytes).ok()?;
        Some(NetworkHeader {
            source: grh.sgid,
            destination: grh.dgid,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
        })
    }

    fn ipv4(&self, udp_len: u16, source: Ipv4Addr, destination: Ipv4Addr) -> [u8; IPV4_LEN] {
        let mut header = [0; IPV4_LEN];
        let total = udp_len.saturating_add(IPV4_LEN as u16);
        header[0] = IPV4_VERSION_IHL;
        header[1] = self.traffic_class;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        header[8] = self.hop_limit;
        header[9] = Grh::NEXT_UDP;
        header[12..16].copy_from_slice(&source.octets());
        header[16..].copy_from_slice(&destination.octets());
        let checksum = !ones_complement_sum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }
}

/// The one's complement sum of 16-bit words, for the IP header checksum (RFC 1071).
fn ones_complement_sum(bytes: &[u8; IPV4_LEN]) -> u16 {
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    /// A known header of a UDP datagram of 115 bytes, with checksum b861.
    #[test]
    fn ipv4_header_has_a_valid_checksum() {
        let network = NetworkHeader {
            source: Gid::from(Ipv4Addr::new(192, 168, 0, 1)),
            destination: Gid::from(Ipv4Addr::new(192, 168, 0, 199)),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        };
        let bytes = network.bytes(115 - 20);
        assert_eq!(bytes[..20], [0; 20]);
        let expected = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8,
            0, 0xc7,
        ];
        assert_eq!(bytes[20..], expected);
        assert_eq!(NetworkHeader::parse(&bytes), Some(network));
        // The bytes before the IPv4 header do not matter.
        let mut bytes = bytes;
        bytes[0] = 0x60;
        assert_eq!(NetworkHeader::parse(&bytes), Some(network));
        bytes[0] = 0;
        bytes[39] ^= 1;
        assert_eq!(NetworkHeader::parse(&bytes), None);
    }

    #[test]
    fn ipv6_header_fills_the_40_bytes() {
        let network = NetworkHeader {
            source: Gid::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
            destination: Gid::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
            traffic_class: 0xb8,
            flow_label: 0x1_2345,
            hop_limit: 63,
        };
        let bytes = network.bytes(300);
        assert_eq!(NetworkHeader::parse(&bytes), Some(network));
        let (grh, rest) = Grh::parse(&bytes).unwrap();
        assert!(rest.is_empty());
        assert_eq!((grh.sgid, grh.dgid), (network.source, network.destination));
        assert_eq!((grh.traffic_class, grh.flow_label), (0xb8, 0x1_2345));
        assert_eq!((grh.payload_len, grh.hop_limit), (300, 63));
        assert_eq!(grh.next_header, Grh::NEXT_UDP);
    }
}
