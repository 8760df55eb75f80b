//! The way to the peer: one UDP socket of our own, on which nothing is sent that was not made here.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use urxe_net::{LocalAddress, OpenError, ROCE_PORT};
use urxe_proto::icrc::{self, Flow, FlowIcrc, IpId};
use urxe_proto::ids::Gid;

/// What our socket's packets have in the IPv4 header.
const OURS: IpId = IpId {
    id: 0,
    dont_fragment: true,
};

/// A damaged ICRC differs from the true one by this.
const DAMAGE: u8 = 0x5a;

/// Why there is no way to the peer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("there is no way to {peer}: {source}")]
    NoWay { peer: IpAddr, source: io::Error },
    #[error("{from} and {peer} are of different IP versions")]
    OtherFamily { from: IpAddr, peer: IpAddr },
    #[error(
        "{source}; the port must be this command's alone: stop what uses urxe at that address, or give \
         another one by --from"
    )]
    Open { source: OpenError },
    #[error("the socket: {0}")]
    Socket(#[from] io::Error),
}

/// What came from the peer.
pub enum Arrival {
    /// A packet, from the BTH to the pad.
    Packet(Vec<u8>),
    /// Something whose ICRC is wrong.
    Damaged,
}

/// A socket and who is at its other end.
pub struct Link {
    socket: UdpSocket,
    local: SocketAddr,
    peer: SocketAddr,
    out: FlowIcrc,
}

impl Link {
    /// Opens port 4791 of `from`, or of the address from which the kernel would reach the peer.
    pub fn open(peer: IpAddr, from: Option<IpAddr>) -> Result<Link, LinkError> {
        let from = match from {
            Some(from) => from,
            None => source_of(peer).map_err(|source| LinkError::NoWay { peer, source })?,
        };
        let address = LocalAddress::new(from, 0);
        let (local, peer_port) = (address.with_port(ROCE_PORT), address.peer(peer, ROCE_PORT));
        let flow = Flow::new(local, peer_port).ok_or(LinkError::OtherFamily { from, peer })?;
        Ok(Link {
            socket: urxe_net::open_alone(address).map_err(|source| LinkError::Open { source })?,
            local,
            peer: peer_port,
            out: FlowIcrc::new(&flow),
        })
    }

    /// Our GID.
    pub fn gid(&self) -> Gid {
        Gid::from_ip(self.local.ip())
    }

    /// Our address.
    pub fn address(&self) -> IpAddr {
        self.local.ip()
    }

    /// The peer's GID.
    pub fn peer_gid(&self) -> Gid {
        Gid::from_ip(self.peer.ip())
    }

    /// Sends a packet, which has at least a BTH's length, with its ICRC or with a wrong one.
    pub fn send(&self, packet: &[u8], sealed: bool) -> Result<(), LinkError> {
        let mut datagram = packet.to_vec();
        datagram.extend(self.out.compute(OURS, packet));
        if let Some(last) = datagram.last_mut().filter(|_| !sealed) {
            *last ^= DAMAGE;
        }
        self.socket.send_to(&datagram, self.peer)?;
        Ok(())
    }

    /// What the peer sent, or `None` when nothing came until then.
    pub fn receive(&self, until: Instant) -> Result<Option<Arrival>, LinkError> {
        // As long as a UDP datagram can be.
        let mut bytes = vec![0; usize::from(u16::MAX)];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // A timeout of zero would be none.
            let timeout = left.max(Duration::from_micros(1));
            self.socket.set_read_timeout(Some(timeout))?;
            let (len, from) = match self.socket.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(error) if is_timeout(&error) && left.is_zero() => return Ok(None),
                Err(error) if is_timeout(&error) => continue,
                // The peer's kernel says that nobody is at the port.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error.into()),
            };
            if from.ip() != self.peer.ip() {
                continue;
            }
            let flow = Flow::new(from, self.local);
            let whole = flow.is_some_and(|flow| icrc::verify(&flow, &bytes[..len], OURS).is_ok());
            if !whole {
                return Ok(Some(Arrival::Damaged));
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

/// The address from which the kernel would send to `peer`.
fn source_of(peer: IpAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match peer {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect((peer, ROCE_PORT))?;
    Ok(socket.local_addr()?.ip())
}
