//! The UDP sockets of one local address.
//!
//! One or more receive on port 4791, shared with the other processes of this user; see `receivers`.
//! Several send, each from a port of its own, so that routers spread flows over paths. They are
//! never connected: only an unconnected socket with path MTU discovery sends packets whose IPv4
//! identification is known beforehand (0, or 0, 1, 2, ... in a GSO batch), and the ICRC covers it.

use crate::address::{DEFAULT_TTL, FIRST_SOURCE_PORT, LocalAddress, ROCE_PORT};
use crate::error::OpenError;
use crate::process_socket::ProcessSocket;
use crate::sys::{int_option, set_option};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The requested buffer size, in bytes. Without `CAP_NET_ADMIN` the kernel limits it to
/// `net.core.rmem_max` and `wmem_max`.
const BUFFER_SIZE: libc::c_int = 16 << 20;

/// Opens a non-blocking, close-on-exec UDP socket.
fn udp(address: LocalAddress) -> Result<ProcessSocket, OpenError> {
    let domain = match address.ip() {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    let open = || -> io::Result<ProcessSocket> {
        let socket = Socket::new(
            domain,
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(true)?;
        }
        Ok(socket.into())
    };
    open().map_err(|e| OpenError::system("opening a UDP socket", e))
}

/// Opens the socket on which `address` receives. `gro` requests `UDP_GRO`.
pub(super) fn open_receiver(address: LocalAddress, gro: bool) -> Result<ProcessSocket, OpenError> {
    let socket = udp(address)?;
    socket
        .set_reuse_port(true)
        .map_err(|e| OpenError::system("sharing a UDP port", e))?;
    receive_with_headers(socket, address, gro)
}

/// Opens a socket that sends from and receives on port 4791 and does not share the port: for
/// programs that speak RoCE without urxe's engine. Its packets have the IPv4 identification 0 and
/// «don't fragment».
///
/// # Errors
/// When the address is not one of this host, or another socket has bound its port.
pub fn open_exclusive(address: LocalAddress) -> Result<UdpSocket, OpenError> {
    let socket = udp(address)?;
    never_fragment(&socket, address)
        .map_err(|e| OpenError::system("setting up a UDP socket", e))?;
    let socket = receive_with_headers(socket, address, false)?;
    let copy = socket.as_fd().try_clone_to_owned();
    let socket = UdpSocket::from(copy.map_err(|e| OpenError::system("opening a UDP socket", e))?);
    socket
        .set_nonblocking(false)
        .map_err(|e| OpenError::system("setting up a UDP socket", e))?;
    Ok(socket)
}

/// Opens a socket that receives the datagrams of a multicast group, and joins the group. The kernel
/// gives a copy to each such socket of each process, of any user.
pub(super) fn open_group_receiver(
    group: LocalAddress,
    gro: bool,
) -> Result<ProcessSocket, OpenError> {
    let socket = udp(group)?;
    socket
        .set_reuse_address(true)
        .map_err(|e| OpenError::system("sharing a UDP port", e))?;
    let socket = receive_with_headers(socket, group, gro)?;
    let join = || -> io::Result<()> {
        let fd = socket.as_fd();
        match group.ip() {
            IpAddr::V4(ip) => {
                // Otherwise the socket receives groups that other sockets joined on other
                // interfaces.
                set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0_i32)?;
                let interface = InterfaceIndexOrAddress::Index(group.scope_id());
                socket.join_multicast_v4_n(&ip, &interface)
            }
            IpAddr::V6(ip) => {
                match set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0_i32) {
                    // Before Linux 4.20.
                    Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                        tracing::debug!("groups of other interfaces are received as well");
                    }
                    set => set?,
                }
                socket.join_multicast_v6(&ip, group.scope_id())
            }
        }
    };
    join().map_err(|e| OpenError::system("joining a multicast group", e))?;
    Ok(socket)
}

fn receive_with_headers(
    socket: ProcessSocket,
    address: LocalAddress,
    gro: bool,
) -> Result<ProcessSocket, OpenError> {
    let configure = || -> io::Result<()> {
        let fd = socket.as_fd();
        match address.ip() {
            IpAddr::V4(_) => {
                set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1_i32)?;
                set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 1_i32)?;
            }
            IpAddr::V6(_) => {
                set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1_i32)?;
                set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1_i32)?;
                // rxe and NICs send a zero checksum, which Linux drops by default (RFC 6936).
                set_option(fd, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1_i32)?;
            }
        }
        Ok(())
    };
    configure().map_err(|e| OpenError::system("setting up a UDP socket", e))?;
    let fd = socket.as_fd();
    if gro && set_option(fd, libc::IPPROTO_UDP, libc::UDP_GRO, 1_i32).is_err() {
        tracing::debug!("the kernel has no UDP_GRO: datagrams are received one by one");
    }
    enlarge(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
    socket
        .bind(&address.with_port(ROCE_PORT).into())
        .map_err(|e| OpenError::bind(address, e))?;
    Ok(socket)
}

/// Enlarges a buffer as far as the kernel permits. A failure is logged only.
fn enlarge(fd: BorrowedFd<'_>, forced: libc::c_int, allowed: libc::c_int) {
    if set_option(fd, libc::SOL_SOCKET, forced, BUFFER_SIZE).is_err()
        && let Err(error) = set_option(fd, libc::SOL_SOCKET, allowed, BUFFER_SIZE)
    {
        tracing::debug!(%error, "the socket keeps its default buffer size");
    }
}

/// Makes the socket send every packet with «don't fragment» and, over IPv4, identification 0.
///
/// Unlike `DO`, `PROBE` ignores path MTUs that the kernel has learnt from ICMP. Any host can forge
/// that error, and the kernel would refuse longer packets for ten minutes. Either way a packet
/// longer than the interface's MTU fails with EMSGSIZE. The application chooses the path MTU of a
/// queue pair.
fn never_fragment(socket: &Socket, address: LocalAddress) -> io::Result<()> {
    let fd = socket.as_fd();
    match address.ip() {
        IpAddr::V4(_) => {
            let (option, probe) = (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
            set_option(fd, libc::IPPROTO_IP, option, probe)
        }
        IpAddr::V6(_) => {
            let (option, probe) = (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
            set_option(fd, libc::IPPROTO_IPV6, option, probe)?;
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1_i32)
        }
    }
}

/// The traffic class set on every sending socket: ECN-capable (RFC 3168), as reliable connections
/// are. A packet with the socket's own values needs no control message, which for a small packet
/// costs the kernel a tenth of its time.
pub(super) const SOCKET_TRAFFIC_CLASS: u8 = 0b10;

/// A socket that sends from one port of one address.
#[derive(Debug)]
pub struct TxSocket {
    socket: ProcessSocket,
    address: LocalAddress,
    port: u16,
    /// The hop limit with which the host sends. A route may have another.
    hop_limit: u8,
    /// Whether the kernel segments batches (GSO) on this socket.
    gso: AtomicBool,
    /// Whether the last send found no space in the socket's buffer.
    full: AtomicBool,
}

impl TxSocket {
    /// Opens a socket on the first free port of a sequence that `seed` determines.
    pub(super) fn open(address: LocalAddress, seed: u32, gso: bool) -> Result<Self, OpenError> {
        let socket = udp(address)?;
        let configure = || -> io::Result<()> {
            let fd = socket.as_fd();
            never_fragment(&socket, address)?;
            match address.ip() {
                IpAddr::V4(_) => {
                    set_option(
                        fd,
                        libc::IPPROTO_IP,
                        libc::IP_TOS,
                        i32::from(SOCKET_TRAFFIC_CLASS),
                    )?;
                }
                IpAddr::V6(_) => {
                    let level = libc::IPPROTO_IPV6;
                    set_option(
                        fd,
                        level,
                        libc::IPV6_TCLASS,
                        i32::from(SOCKET_TRAFFIC_CLASS),
                    )?;
                    set_option(fd, level, libc::IPV6_FLOWINFO_SEND, 1_i32)?;
                }
            }
            // Nothing is received on this port: the kernel rounds 0 up to its minimum.
            set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 0_i32)
        };
        configure().map_err(|e| OpenError::system("setting up a UDP socket", e))?;
        enlarge(socket.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        let port = bind_source_port(&socket, address, seed)?;
        let (level, option) = match address.ip() {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        };
        let hop_limit = int_option(socket.as_fd(), level, option)
            .ok()
            .and_then(|hops| u8::try_from(hops).ok())
            .unwrap_or(DEFAULT_TTL);
        let gso =
            gso && set_option(socket.as_fd(), libc::IPPROTO_UDP, libc::UDP_SEGMENT, 0_i32).is_ok();
        Ok(TxSocket {
            socket,
            address,
            port,
            hop_limit,
            gso: AtomicBool::new(gso),
            full: AtomicBool::new(false),
        })
    }

    pub(super) fn address(&self) -> LocalAddress {
        self.address
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The hop limit with which the host sends.
    pub(super) fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Sets the interface by which multicast datagrams leave.
    pub(super) fn multicast_by(&self, interface_index: u32) -> Result<(), OpenError> {
        let set = match self.address.ip() {
            IpAddr::V4(_) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: 0 },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: interface_index.cast_signed(),
                };
                set_option(self.fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, request)
            }
            IpAddr::V6(_) => self.socket.set_multicast_if_v6(interface_index),
        };
        set.map_err(|e| OpenError::system("choosing the interface for multicast", e))
    }

    pub(super) fn has_gso(&self) -> bool {
        self.gso.load(Ordering::Relaxed)
    }

    /// Disables GSO after the kernel has refused to segment a batch: some devices cannot.
    pub(super) fn give_up_gso(&self) {
        if self.gso.swap(false, Ordering::Relaxed) {
            tracing::debug!(address = %self.address, "no GSO on this device");
        }
    }

    /// Whether the last send found no space in the socket's buffer; [`TxSocket::set_full`] clears
    /// it. This is a hint: a caller that depends on it must poll [`TxSocket::fd`].
    #[inline]
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Records whether the kernel refused the last send for lack of space.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Release);
    }

    /// The socket; writable when its buffer has space.
    #[inline]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind_source_port(socket: &Socket, address: LocalAddress, seed: u32) -> Result<u16, OpenError> {
    const PORTS: u32 = 0x1_0000 - FIRST_SOURCE_PORT as u32;
    // An odd step visits every port of the range once, for any seed.
    let step = (seed >> 16) | 1;
    for i in 0..PORTS {
        let offset = seed.wrapping_add(i.wrapping_mul(step)) % PORTS;
        let port = FIRST_SOURCE_PORT + offset as u16;
        match socket.bind(&address.with_port(port).into()) {
            Ok(()) => return Ok(port),
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(e) => return Err(OpenError::bind(address, e)),
        }
    }
    Err(OpenError::System {
        what: "finding a free UDP port from 49152 to 65535",
        source: io::Error::from_raw_os_error(libc::EADDRINUSE),
    })
}

/// Waits at most `milliseconds` for space in the socket. Returns false when it still has none.
pub(super) fn wait_writable(fd: BorrowedFd<'_>, milliseconds: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let timeout = Timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: (milliseconds % 1000) * 1_000_000,
    };
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lo() -> LocalAddress {
        LocalAddress::new([127, 0, 0, 1].into(), 1)
    }

    #[test]
    fn source_ports_are_in_the_range_of_roce_and_differ() {
        let a = TxSocket::open(lo(), 7, true).unwrap();
        let b = TxSocket::open(lo(), 7, true).unwrap();
        assert!(a.port() >= FIRST_SOURCE_PORT && b.port() >= FIRST_SOURCE_PORT);
        assert_ne!(a.port(), b.port());
    }

    #[test]
    fn address_of_another_host_is_reported_as_not_available() {
        let address = LocalAddress::new([192, 0, 2, 77].into(), 0);
        let error = open_receiver(address, true).unwrap_err();
        assert!(matches!(error, OpenError::AddressNotAvailable { .. }));
        assert!(error.to_string().contains("192.0.2.77"));
    }

    #[test]
    fn port_that_is_not_shared_is_reported_as_in_use() {
        let address = LocalAddress::new([127, 0, 47, 91].into(), 1);
        let owner = UdpSocket::bind(address.with_port(ROCE_PORT)).unwrap();
        let error = open_receiver(address, true).unwrap_err();
        drop(owner);
        assert!(matches!(error, OpenError::PortInUse { .. }));
        assert_eq!(error.errno(), libc::EADDRINUSE);
    }
}
