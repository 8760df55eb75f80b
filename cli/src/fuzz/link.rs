//! The UDP socket to the peer. It is exclusive to the fuzzer, so all its packets are crafted ones.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use urxe_net::{LocalAddress, OpenError, ROCE_PORT};
use urxe_proto::icrc::{self, Flow, FlowIcrc, IpId};
use urxe_proto::ids::Gid;

/// The fields of the IPv4 header that the ICRC covers.
const IP_FIELDS: IpId = IpId {
    id: 0,
    dont_fragment: true,
};

/// The difference between a wrong ICRC and the right one.
const ICRC_ERROR: u8 = 0x5a;

/// An error of the socket to the peer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("no route to {peer}: {source}")]
    NoRoute { peer: IpAddr, source: io::Error },
    #[error("{from} and {peer} have different IP versions")]
    OtherFamily { from: IpAddr, peer: IpAddr },
    #[error(
        "{source}; port 4791 must be free: stop the urxe programs at that address, or choose \
         another one by --from"
    )]
    Open { source: OpenError },
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

/// A datagram from the peer.
pub enum Arrival {
    /// A packet from the BTH to the pad.
    Packet(Vec<u8>),
    /// A datagram with a wrong ICRC.
    WrongIcrc,
}

/// A socket and the peer's address.
pub struct Link {
    socket: UdpSocket,
    local: SocketAddr,
    peer: SocketAddr,
    out: FlowIcrc,
}

impl Link {
    /// Opens port 4791 at `from`, or at the kernel's source address for the peer.
    pub fn open(peer: IpAddr, from: Option<IpAddr>) -> Result<Link, LinkError> {
        let from = match from {
            Some(from) => from,
            None => source_of(peer).map_err(|source| LinkError::NoRoute { peer, source })?,
        };
        let address = LocalAddress::new(from, 0);
        let (local, peer_port) = (address.with_port(ROCE_PORT), address.peer(peer, ROCE_PORT));
        let flow = Flow::new(local, peer_port).ok_or(LinkError::OtherFamily { from, peer })?;
        Ok(Link {
            socket: urxe_net::open_exclusive(address)
                .map_err(|source| LinkError::Open { source })?,
            local,
            peer: peer_port,
            out: FlowIcrc::new(&flow),
        })
    }

    /// Returns the local GID.
    pub fn gid(&self) -> Gid {
        Gid::from_ip(self.local.ip())
    }

    /// Returns the local address.
    pub fn address(&self) -> IpAddr {
        self.local.ip()
    }

    /// Returns the peer's GID.
    pub fn peer_gid(&self) -> Gid {
        Gid::from_ip(self.peer.ip())
    }

    /// Sends a packet of at least a BTH, with a right or a wrong ICRC.
    pub fn send(&self, packet: &[u8], valid_icrc: bool) -> Result<(), LinkError> {
        let mut datagram = packet.to_vec();
        datagram.extend(self.out.compute(IP_FIELDS, packet));
        if let Some(last) = datagram.last_mut().filter(|_| !valid_icrc) {
            *last ^= ICRC_ERROR;
        }
        self.socket.send_to(&datagram, self.peer)?;
        Ok(())
    }

    /// Returns the next datagram of the peer, or `None` at the deadline.
    pub fn receive(&self, deadline: Instant) -> Result<Option<Arrival>, LinkError> {
        // The longest UDP datagram.
        let mut bytes = vec![0; usize::from(u16::MAX)];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A read timeout of zero would mean no timeout.
            let timeout = left.max(Duration::from_micros(1));
            self.socket.set_read_timeout(Some(timeout))?;
            let (len, from) = match self.socket.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(error) if is_timeout(&error) && left.is_zero() => return Ok(None),
                Err(error) if is_timeout(&error) => continue,
                // An ICMP port unreachable message of the peer's kernel.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error.into()),
            };
            if from.ip() != self.peer.ip() {
                continue;
            }
            let flow = Flow::new(from, self.local);
            let valid =
                flow.is_some_and(|flow| icrc::verify(&flow, &bytes[..len], IP_FIELDS).is_ok());
            if !valid {
                return Ok(Some(Arrival::WrongIcrc));
            }
            bytes.truncate(len - icrc::LEN);
            return Ok(Some(Arrival::Packet(bytes)));
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Returns the kernel's source address for packets to `peer`.
fn source_of(peer: IpAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match peer {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect((peer, ROCE_PORT))?;
    Ok(socket.local_addr()?.ip())
}
