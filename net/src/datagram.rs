//! Received datagrams, and copies of them for later.

use crate::address::{DEFAULT_TTL, LocalAddress};
use crate::faults::injector;
use crate::icrc;
use std::net::SocketAddr;
use urxe_proto::icrc::IpId;

/// One received RoCE packet.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Datagram<'a> {
    /// The sender. It chooses the port, usually the same one for all packets of a connection.
    pub src: SocketAddr,
    /// The address of this host that the packet was sent to.
    pub dst: LocalAddress,
    /// The IPv4 type of service or IPv6 traffic class. The low two bits are ECN.
    pub tos: u8,
    /// The remaining IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// The position in the batch that the kernel delivered. Where the sender's GSO batch crossed
    /// the kernel unsplit, it equals the IPv4 identification.
    pub index: u16,
    /// Whether the batch starts with this packet. The kernel steers a batch by its first packet.
    pub first_of_batch: bool,
    /// Whether another process received the packet and forwarded it.
    pub forwarded: bool,
    /// The IPv4 identification that the ICRC was computed with; `None` for IPv6, and before the
    /// ICRC is verified.
    pub ip_id: Option<IpId>,
    /// The UDP payload: from the BTH to the ICRC, which is the last four bytes.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Returns a datagram with these addresses and this UDP payload, the default TTL and no traffic
    /// class, as if it had arrived alone.
    pub fn new(src: SocketAddr, dst: LocalAddress, bytes: &'a [u8]) -> Self {
        Datagram {
            src,
            dst,
            tos: 0,
            ttl: DEFAULT_TTL,
            index: 0,
            first_of_batch: true,
            forwarded: false,
            ip_id: None,
            bytes,
        }
    }

    /// Returns the bytes from the BTH to the end of the pad.
    #[inline]
    pub fn packet(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(icrc::LEN);
        &self.bytes[..end]
    }
}

/// A copy of a datagram, for later.
#[derive(Clone, Debug)]
pub struct OwnedDatagram {
    src: SocketAddr,
    dst: LocalAddress,
    tos: u8,
    ttl: u8,
    index: u16,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

impl From<&Datagram<'_>> for OwnedDatagram {
    fn from(datagram: &Datagram<'_>) -> Self {
        OwnedDatagram {
            src: datagram.src,
            dst: datagram.dst,
            tos: datagram.tos,
            ttl: datagram.ttl,
            index: datagram.index,
            bytes: datagram.bytes.to_vec(),
        }
    }
}

impl OwnedDatagram {
    /// Returns the datagram, without its flags (`first_of_batch`, `forwarded`) and identification.
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram {
            src: self.src,
            dst: self.dst,
            tos: self.tos,
            ttl: self.ttl,
            index: self.index,
            first_of_batch: false,
            forwarded: false,
            ip_id: None,
            bytes: &self.bytes,
        }
    }
}

impl injector::Packet for OwnedDatagram {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
