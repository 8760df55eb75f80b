//! IP identification and fragmentation of packets as they leave an interface, and forged ICMP
//! errors.
//!
//! The test program runs in its own network namespace, where it may open raw sockets.

#[path = "../../tests/common/own_network.rs"]
mod own_network;
#[path = "../../tests/common/skip_test.rs"]
mod skip_test;

use skip_test::skip_test;
use socket2::{Domain, Protocol, Socket, Type};
use std::env;
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use urxe_net::{Endpoint, LocalAddress, Options, PathOptions, ROCE_PORT, SendBatch, Shared};
use urxe_proto::host::Transmit;

/// The end of a veth pair from which packets are sent, and the end that captures them.
const TX_DEVICE: &str = "near";
const RX_DEVICE: &CStr = c"far";

/// Longer than any packet takes to cross the veth pair.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `ip`.
fn ip(words: &str) -> String {
    let path = env::join_paths(
        env::split_paths(&env::var_os("PATH").unwrap_or_default())
            .chain(["/usr/sbin".into(), "/sbin".into()]),
    );
    let output = Command::new("ip")
        .env("PATH", path.expect("it was split from a path"))
        .args(words.split(' '))
        .output()
        .expect("ip is there");
    assert!(output.status.success(), "ip {words}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A captured UDP packet.
#[derive(PartialEq, Eq, Debug)]
struct Packet {
    /// The IPv4 identification and the DF bit; `None` over IPv6.
    id: Option<(u16, bool)>,
    /// The bytes from the start of the IP header.
    bytes: Vec<u8>,
    source_port: u16,
    /// Bytes of UDP payload.
    payload: usize,
}

impl Packet {
    /// Parses an IP packet. Returns `None` unless it is a UDP packet to port 4791.
    fn parse(bytes: &[u8]) -> Option<Packet> {
        let (id, udp) = match bytes.first()? >> 4 {
            4 if bytes.get(9) == Some(&17) => {
                let flags = bytes[6] & 0x40 != 0;
                let id = u16::from_be_bytes([bytes[4], bytes[5]]);
                (Some((id, flags)), bytes.get(20..)?)
            }
            6 if bytes.get(6) == Some(&17) => (None, bytes.get(40..)?),
            _ => return None,
        };
        let word = |at: usize| Some(u16::from_be_bytes([*udp.get(at)?, *udp.get(at + 1)?]));
        (word(2)? == ROCE_PORT).then_some(Packet {
            id,
            bytes: bytes.to_vec(),
            source_port: word(0)?,
            payload: udp.len() - 8,
        })
    }
}

/// Captures the packets that arrive at an interface.
struct Capture(OwnedFd);

impl Capture {
    fn open(interface: &CStr) -> Capture {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: `socket` takes integers only. `fd` is valid, as asserted, and owned by nothing
        // else.
        let socket = unsafe {
            let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let fd = libc::socket(libc::AF_PACKET, kind, i32::from(protocol));
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: `interface` is NUL-terminated, and all zeros is a valid `sockaddr_ll`.
        let address = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(interface.as_ptr()).cast_signed();
            address
        };
        // SAFETY: the pointer and the length describe `address`, which lives until the call
        // returns.
        let bound = unsafe {
            let len = size_of_val(&address) as u32;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
        };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Capture(socket)
    }

    /// Returns the next `count` packets to port 4791.
    fn take(&self, count: usize) -> Vec<Packet> {
        let deadline = Instant::now() + LIMIT;
        let mut packets = Vec::new();
        while packets.len() < count {
            let mut room = [0_u8; 4096];
            match rustix::net::recv(&self.0, &mut room[..], rustix::net::RecvFlags::empty()) {
                Ok((len, _)) => packets.extend(Packet::parse(&room[..len])),
                Err(_) => {
                    assert!(Instant::now() < deadline, "{} of {count}", packets.len());
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        packets
    }
}

/// An endpoint at one end of a veth pair, and a capture at the other.
struct VethCapture {
    local: IpAddr,
    peer: IpAddr,
    endpoint: Endpoint,
    capture: Capture,
    batch: SendBatch,
}

impl VethCapture {
    fn new(local: IpAddr, peer: IpAddr) -> VethCapture {
        let shared: Arc<Shared> = Shared::new(Options::default()).expect("a slot");
        // SAFETY: the argument is a NUL-terminated string literal.
        let index = unsafe { libc::if_nametoindex(c"near".as_ptr()) };
        let endpoint = shared.open(LocalAddress::new(local, index));
        VethCapture {
            local,
            peer,
            endpoint: endpoint.expect("the address is this host's"),
            capture: Capture::open(RX_DEVICE),
            batch: SendBatch::default(),
        }
    }

    /// Sends `count` packets of `len` bytes in one batch, and returns them as captured.
    fn send(&mut self, count: usize, len: usize) -> Vec<Packet> {
        let path = self.endpoint.path(self.peer, PathOptions::default());
        self.batch.begin(&path.expect("a source port"));
        for _ in 0..count {
            self.batch.stage(len - 4).expect("room").fill(0x5a);
            self.batch.commit();
        }
        let report = self.batch.flush();
        assert!(report.error.is_none(), "{report:?}");
        assert_eq!(report.packets, count as u64);
        let packets = self.capture.take(count);
        assert!(packets.iter().all(|packet| packet.payload == len));
        packets
    }

    /// Sends this host the ICMP error of a router for which `packet` is too long. The kernel
    /// accepts it.
    fn forge_too_big(&self, packet: &Packet, mtu: u16) {
        let (domain, protocol) = match self.local {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let mut message = vec![0; 8];
        match self.local {
            // Destination unreachable, fragmentation needed (RFC 1191).
            IpAddr::V4(_) => message[..2].copy_from_slice(&[3, 4]),
            // Packet too big (RFC 8201).
            IpAddr::V6(_) => message[0] = 2,
        }
        message[6..8].copy_from_slice(&mtu.to_be_bytes());
        message.extend_from_slice(&packet.bytes[..48]);
        if self.local.is_ipv4() {
            // For a raw ICMP socket the kernel computes the checksum of ICMPv6 only.
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let raw = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket");
        raw.send_to(&message, &SocketAddr::new(self.local, 0).into())
            .expect("it is sent to this host");
        let deadline = Instant::now() + LIMIT;
        let route = format!("route get {} from {}", self.peer, self.local);
        while !ip(&route).contains(&format!("mtu {mtu}")) {
            assert!(Instant::now() < deadline, "the kernel ignores the error");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

fn ids(packets: &[Packet]) -> Vec<Option<(u16, bool)>> {
    packets.iter().map(|packet| packet.id).collect()
}

/// Returns the identification and DF bit with which the ICRC of a batch of five is computed. The
/// identification is the packet's position in the batch.
fn expected_ids(local: IpAddr) -> Vec<Option<(u16, bool)>> {
    (0..5)
        .map(|id| local.is_ipv4().then_some((id, true)))
        .collect()
}

fn forged_errors_change_nothing(local: &str, peer: &str, mtu: u16) {
    let (local, peer): (IpAddr, IpAddr) = (local.parse().unwrap(), peer.parse().unwrap());
    let mut scene = VethCapture::new(local, peer);
    let len = usize::from(mtu);
    for _ in 0..2 {
        let single = scene.send(1, len);
        assert_eq!(ids(&single), expected_ids(local)[..1]);
        assert_eq!(ids(&scene.send(5, len)), expected_ids(local));
        // In the second round the kernel has accepted the error.
        scene.forge_too_big(&single[0], mtu);
        let path = scene.endpoint.path(scene.peer, PathOptions::default());
        let known = path.expect("a source port").known_mtu();
        assert_eq!(known.expect("the peer has a route"), u32::from(mtu));
    }
}

#[test]
fn a_forged_icmp_error_neither_stops_packets_nor_changes_their_identification() {
    if env::var_os("TESTS_HAVE_THEIR_OWN_NETWORK").is_none() {
        return skip_test("needs the right to make network namespaces");
    }
    for words in [
        format!("link add {TX_DEVICE} type veth peer name far"),
        // `nodad`: no wait for duplicate address detection.
        format!("addr add 192.0.2.1/24 dev {TX_DEVICE}"),
        format!("addr add 2001:db8::1/64 dev {TX_DEVICE} nodad"),
        // The kernel segments batches before they leave, as a NIC does.
        format!("link set {TX_DEVICE} gso_max_segs 1 up"),
        "link set far up".to_owned(),
        format!("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev {TX_DEVICE}"),
        format!("neigh add 2001:db8::2 lladdr 02:00:00:00:00:02 dev {TX_DEVICE}"),
    ] {
        ip(&words);
    }
    forged_errors_change_nothing("192.0.2.1", "192.0.2.2", 576);
    forged_errors_change_nothing("2001:db8::1", "2001:db8::2", 1280);
}
