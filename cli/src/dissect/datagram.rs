//! From a frame of any link layer to its RoCEv2 datagrams, with the verdict on their ICRCs.

use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice, UdpHeader};
use pcap_file::DataLink;
use urxe_net::is_steering_probe;
use urxe_proto::icrc::{self, Flow, IpId};
use urxe_proto::mtu::Mtu;
use urxe_proto::wire::{Bth, UDP_PORT};

/// The verdict on an ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icrc {
    Right,
    Wrong {
        received: u32,
        expected: u32,
    },
    /// The capture does not contain the whole packet.
    Truncated,
}

/// A RoCEv2 packet with its addresses.
#[derive(Debug)]
pub struct Datagram<'a> {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// Whether a router marked congestion: ECN is CE.
    pub congestion: bool,
    pub icrc: Icrc,
    /// The ICRC as a number, or 0 if it was not captured. With the same headers it identifies the
    /// packet.
    pub checksum: u32,
    /// The captured bytes, from the BTH to the end of the pad.
    pub bytes: &'a [u8],
    /// The length on the wire, from the BTH to the end of the pad.
    pub len: usize,
}

/// The contents of a frame.
#[derive(Debug)]
pub enum Contents<'a> {
    /// Not RoCEv2.
    Other,
    /// One packet, or those of a batch that the kernel captures before it is segmented.
    Roce(Vec<Datagram<'a>>),
    /// A part of an IP packet, which RoCEv2 does not permit (A17.3.1.2).
    Fragment(IpAddr, IpAddr),
}

/// The header of Linux's cooked captures, versions 1 and 2, and the offset of the EtherType in it.
const SLL_LEN: usize = 16;
const SLL_ETHER_TYPE: usize = 14;
const SLL2_LEN: usize = 20;
const SLL2_ETHER_TYPE: usize = 0;
/// The address family before a packet of BSD's loopback interfaces.
const FAMILY_LEN: usize = 4;
/// The longest packet of RoCE. The room for headers includes an IPv6 and a UDP header.
const MAX_PACKET: usize = Mtu::HEADER_ROOM as usize + Mtu::B4096.bytes();
/// The Explicit Congestion Notification field, and its value for congestion.
const ECN: u8 = 3;

/// The fields of an IP and UDP header that matter here.
struct Envelope {
    src: SocketAddr,
    dst: SocketAddr,
    id: IpId,
    congestion: bool,
    /// The length of the UDP payload on the wire.
    len: usize,
}

/// Returns the contents of a frame.
pub fn contents(link: DataLink, frame: &[u8]) -> Contents<'_> {
    let Some(packet) = slice(link, frame) else {
        return Contents::Other;
    };
    let (src, dst, id, traffic_class) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let ip = ip.header();
            let id = IpId {
                id: ip.identification(),
                dont_fragment: ip.dont_fragment(),
            };
            let traffic_class = ip.dcp().value() << 2 | ip.ecn().value();
            let (src, dst) = (ip.source_addr(), ip.destination_addr());
            (IpAddr::from(src), IpAddr::from(dst), id, traffic_class)
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let ip = ip.header();
            let (src, dst) = (ip.source_addr(), ip.destination_addr());
            let (src, dst) = (IpAddr::from(src), IpAddr::from(dst));
            (src, dst, IpId::default(), ip.traffic_class())
        }
        _ => return Contents::Other,
    };
    let Some(payload) = packet.ip_payload() else {
        return Contents::Other;
    };
    if payload.fragmented {
        // Only the first fragment has the port.
        let port = payload.payload.get(2..4) == Some(&UDP_PORT.to_be_bytes());
        return match port {
            true => Contents::Fragment(src, dst),
            false => Contents::Other,
        };
    }
    let Some(TransportSlice::Udp(udp)) = &packet.transport else {
        return Contents::Other;
    };
    if udp.destination_port() != UDP_PORT || is_steering_probe(udp.payload()) {
        return Contents::Other;
    }
    let envelope = Envelope {
        src: SocketAddr::new(src, udp.source_port()),
        dst: SocketAddr::new(dst, udp.destination_port()),
        id,
        congestion: traffic_class & ECN == ECN,
        len: usize::from(udp.length()).saturating_sub(UdpHeader::LEN),
    };
    Contents::Roce(datagrams(&envelope, udp.payload()))
}

/// Finds the IP packet in a frame.
fn slice(link: DataLink, frame: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let cooked = |header: usize, at: usize| {
        let kind = frame.get(at..at + 2)?;
        let kind = EtherType(u16::from_be_bytes([kind[0], kind[1]]));
        Some(LaxSlicedPacket::from_ether_type(kind, frame.get(header..)?))
    };
    match link {
        DataLink::ETHERNET => LaxSlicedPacket::from_ethernet(frame).ok(),
        DataLink::LINUX_SLL => cooked(SLL_LEN, SLL_ETHER_TYPE),
        DataLink::LINUX_SLL2 => cooked(SLL2_LEN, SLL2_ETHER_TYPE),
        DataLink::NULL | DataLink::LOOP => LaxSlicedPacket::from_ip(frame.get(FAMILY_LEN..)?).ok(),
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => LaxSlicedPacket::from_ip(frame).ok(),
        // The number that BSD and Linux write for raw IP, before the registry had one.
        DataLink::Unknown(12 | 14) => LaxSlicedPacket::from_ip(frame).ok(),
        _ => None,
    }
}

/// Returns whether frames of this link layer can be dissected.
pub fn is_supported(link: DataLink) -> bool {
    matches!(
        link,
        DataLink::ETHERNET
            | DataLink::LINUX_SLL
            | DataLink::LINUX_SLL2
            | DataLink::NULL
            | DataLink::LOOP
            | DataLink::RAW
            | DataLink::IPV4
            | DataLink::IPV6
            | DataLink::Unknown(12 | 14)
    )
}

fn datagrams<'a>(envelope: &Envelope, payload: &'a [u8]) -> Vec<Datagram<'a>> {
    let payload = &payload[..payload.len().min(envelope.len)];
    let whole = datagram(envelope, payload, envelope.len, envelope.id);
    if let Icrc::Wrong { .. } = whole.icrc
        && let Some(batch) = split(envelope, payload)
    {
        return batch;
    }
    vec![whole]
}

/// Returns the packets of a batch: the kernel captures what it segments later, or what a virtual
/// interface never segments, as one datagram. Its packets are equally long except for the last, and
/// their IPv4 identifications are consecutive. Their length follows from the first one's ICRC.
fn split<'a>(envelope: &Envelope, payload: &'a [u8]) -> Option<Vec<Datagram<'a>>> {
    let shortest = Bth::LEN + icrc::LEN;
    let longest = MAX_PACKET.min(payload.len().saturating_sub(shortest));
    let is_right = |datagram: &Datagram<'_>| datagram.icrc == Icrc::Right;
    let len = (shortest..=longest)
        .step_by(4)
        .find(|&len| is_right(&datagram(envelope, &payload[..len], len, envelope.id)))?;
    let packet = |(i, bytes): (usize, &'a [u8])| {
        let id = IpId {
            id: envelope.id.id.wrapping_add(i as u16),
            ..envelope.id
        };
        datagram(envelope, bytes, bytes.len(), id)
    };
    Some(payload.chunks(len).enumerate().map(packet).collect())
}

/// Returns a datagram of `len` bytes, ICRC included, of which `captured` is in the capture.
fn datagram<'a>(envelope: &Envelope, captured: &'a [u8], len: usize, id: IpId) -> Datagram<'a> {
    let (bytes, icrc, checksum) = match captured.split_last_chunk::<{ icrc::LEN }>() {
        Some((bytes, found)) if captured.len() == len && bytes.len() >= Bth::LEN => {
            let flow = Flow::new(envelope.src, envelope.dst).expect("addresses of one packet");
            let expected = icrc::compute(&flow, id.id, id.dont_fragment, bytes);
            let verdict = match expected == *found {
                true => Icrc::Right,
                false => Icrc::Wrong {
                    received: u32::from_be_bytes(*found),
                    expected: u32::from_be_bytes(expected),
                },
            };
            (bytes, verdict, u32::from_be_bytes(*found))
        }
        // Too short for a BTH: the parser reports it.
        Some((bytes, _)) if captured.len() == len => (bytes, Icrc::Truncated, 0),
        _ => (captured, Icrc::Truncated, 0),
    };
    Datagram {
        src: envelope.src,
        dst: envelope.dst,
        congestion: envelope.congestion,
        icrc,
        checksum,
        bytes,
        len: len.saturating_sub(icrc::LEN),
    }
}

/// Returns the interface and the direction that a cooked header has; zeroes for other link layers.
pub fn cooked_place(link: DataLink, frame: &[u8]) -> [u8; 6] {
    let mut place = [0; 6];
    match link {
        // The packet type is the first field.
        DataLink::LINUX_SLL => {
            if let Some(kind) = frame.first_chunk::<2>() {
                place[..2].copy_from_slice(kind);
            }
        }
        // Protocol, 2 reserved bytes, interface (4), ARPHRD (2), packet type (1).
        DataLink::LINUX_SLL2 => {
            if let Some(header) = frame.first_chunk::<SLL2_LEN>() {
                place[..4].copy_from_slice(&header[4..8]);
                place[4] = header[10];
            }
        }
        _ => (),
    }
    place
}
