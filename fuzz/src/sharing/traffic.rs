//! Two processes that share an address, and the datagrams and messages that others send to them.

use super::packet::{Packet, QPN};
use super::sockets::{connected, flow, own_address};
use arbitrary::Arbitrary;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use urxe_net::{Datagram, LocalAddress, Options, RecvBatch, SLOTS, Shared};
use urxe_proto::ids::Qpn;

/// The arrivals at two processes that share an address.
#[derive(Arbitrary, Debug)]
pub struct Traffic {
    steps: Vec<Arrival>,
}

#[derive(Arbitrary, Debug)]
enum Arrival {
    /// A datagram to port 4791.
    Packet(Packet),
    /// A forwarded message, or arbitrary bytes, to the Unix socket of a slot.
    Message {
        second: bool,
        header: Option<Header>,
        bytes: Vec<u8>,
    },
    /// The reply to a probe that was not sent.
    Answer {
        second: bool,
        slot: u8,
        index: u16,
        nonce: [u8; 16],
        corruption: Option<Corruption>,
    },
    /// A probe, which the process that receives it replies to.
    Probe {
        index: u16,
        nonce: [u8; 16],
        corruption: Option<Corruption>,
    },
}

/// A corruption of a probe or its reply.
#[derive(Arbitrary, Debug)]
enum Corruption {
    Byte(u8, u8),
    Longer(Vec<u8>),
    Shorter(u8),
}

impl Corruption {
    fn apply(&self, message: &mut Vec<u8>) {
        match self {
            Corruption::Byte(at, byte) => {
                let at = usize::from(*at) % message.len();
                message[at] ^= byte;
            }
            Corruption::Longer(bytes) => message.extend(bytes.iter().take(100)),
            Corruption::Shorter(len) => message.truncate((*len).into()),
        }
    }
}

/// A probe reply in the format of `steering.rs`.
fn reply(slot: u8, sockets: u8, index: u16, nonce: [u8; 16]) -> Vec<u8> {
    let mut reply = b"urxa".to_vec();
    reply.extend([slot, sockets]);
    reply.extend(index.to_be_bytes());
    reply.extend(nonce);
    reply
}

/// Sends a message, unless it is empty: that is how the end of a connection reads.
fn send(link: &OwnedFd, message: &[u8]) {
    if message.is_empty() {
        return;
    }
    // SAFETY: the pointer and the length describe `message`, which the call reads.
    let sent = unsafe {
        let flags = libc::MSG_NOSIGNAL;
        libc::send(
            link.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            flags,
        )
    };
    assert_eq!(
        sent,
        message.len() as isize,
        "{}",
        std::io::Error::last_os_error()
    );
}

/// A probe in the format of `steering.rs`.
fn probe(index: u16, nonce: [u8; 16]) -> Vec<u8> {
    let mut probe = vec![0xff, 0, 0, 0, 0, SLOTS];
    probe.extend(index.to_be_bytes());
    probe.extend(b"urxp");
    probe.extend(nonce);
    probe
}

/// The header of a forwarded datagram.
#[derive(Arbitrary, Debug)]
struct Header {
    version: bool,
    family: u8,
    v4: bool,
    fields: [u8; 32],
    scope: u32,
    numbers: [u16; 3],
}

impl Header {
    /// Encodes the header in the format of `forward.rs`.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = b"urxf".to_vec();
        bytes.push(if self.version { 1 } else { 2 });
        bytes.push(match self.family {
            0..=100 => 4,
            101..=200 => 6,
            other => other,
        });
        bytes.extend_from_slice(&[0, 64]);
        let mut addresses = self.fields;
        if self.v4 {
            for address in addresses.chunks_exact_mut(16) {
                address[..12]
                    .copy_from_slice(&Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().octets()[..12]);
            }
        }
        bytes.extend_from_slice(&addresses);
        bytes.extend_from_slice(&self.scope.to_ne_bytes());
        for number in self.numbers {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes.extend_from_slice(&[0; 2]);
        bytes
    }
}

/// The networking of one process, with an endpoint at the shared address.
pub(super) struct Host {
    pub(super) shared: Arc<Shared>,
    endpoint: urxe_net::Endpoint,
    batch: Mutex<RecvBatch>,
}

/// The two processes, which live as long as the program. The second has four receive sockets.
pub(super) fn hosts() -> &'static [Host; 2] {
    static HOSTS: OnceLock<[Host; 2]> = OnceLock::new();
    HOSTS.get_or_init(|| {
        let hosts = [(); 2].map(|()| {
            let shared = Shared::new(Options::default()).expect("a slot is free");
            let address = LocalAddress::new(own_address(0).into(), 1);
            let endpoint = shared.open(address).expect("port 4791 can be opened");
            Host {
                shared,
                endpoint,
                batch: Mutex::default(),
            }
        });
        hosts[1]
            .endpoint
            .add_receive_sockets(4)
            .expect("port 4791 can be opened");
        // Until both know each other's socket indices.
        for _ in 0..100 {
            hosts.iter().for_each(|host| drop(host.receive()));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        hosts
    })
}

impl Host {
    /// Receives the pending datagrams for this process.
    fn receive(&self) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let mut take = |datagram: &Datagram<'_>| got.push(datagram.bytes.to_vec());
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        self.endpoint
            .service(&mut batch, &mut take)
            .expect("the sockets work");
        for number in 0..self.endpoint.receive_sockets() {
            while self
                .endpoint
                .fill(number, &mut batch)
                .expect("the socket works")
                > 0
            {
                self.endpoint.deliver(number, &mut batch, &mut take);
            }
        }
        while self
            .shared
            .recv_forwarded(&mut batch, &mut take)
            .expect("the socket works")
            > 0
        {}
        self.shared.answer_queries(Vec::new);
        got
    }

    /// The address that it sends probes from.
    fn probe_address(&self) -> std::net::SocketAddr {
        let copy = self.endpoint.service_fd().try_clone_to_owned();
        let prober = UdpSocket::from(copy.expect("the descriptor can be cloned"));
        prober.local_addr().expect("the socket is bound")
    }

    /// Returns whether a sealed datagram is for this process.
    ///
    /// `None` if both processes may accept it, as for messages to queue pair 1.
    fn owns(&self, bytes: &[u8]) -> Option<bool> {
        let qpn = u32::from_be_bytes([0, bytes[QPN], bytes[QPN + 1], bytes[QPN + 2]]);
        match Qpn::new(qpn) {
            Qpn::GSI => None,
            Qpn::MULTICAST => None,
            qpn => Some((qpn.get() >> urxe_net::QPN_BITS) as u8 == self.shared.slot()),
        }
    }
}

impl Traffic {
    pub(super) fn run(self) {
        let [first, second] = hosts();
        // Discard the datagrams of earlier inputs.
        hosts().iter().for_each(|host| drop(host.receive()));
        let (own, other) = (first.shared.slot(), second.shared.slot());
        let udp = UdpSocket::bind((own_address(0), 0)).expect("a port is free");
        udp.set_nonblocking(true).expect("the socket works");
        let port = udp.local_addr().expect("the socket is bound").port();
        let flow = flow(own_address(0), port, own_address(0));
        let links = [own, other].map(|slot| connected(&format!("urxe/link/{slot}")));
        for step in self.steps.iter().take(24) {
            let (mut sent, mut probed) = (None, None);
            match step {
                Arrival::Packet(packet) => {
                    let bytes = packet.to_bytes(own, other, &flow);
                    udp.send_to(&bytes, (own_address(0), urxe_net::ROCE_PORT))
                        .expect("the datagram can be sent");
                    sent = Some((bytes, packet.sealed));
                }
                Arrival::Message {
                    second,
                    header,
                    bytes,
                } => {
                    let mut message = header.as_ref().map(Header::to_bytes).unwrap_or_default();
                    message.extend_from_slice(bytes);
                    // The queue has room: it is read after each step.
                    send(&links[usize::from(*second)], &message);
                }
                Arrival::Answer {
                    second: to_second,
                    slot,
                    index,
                    nonce,
                    corruption,
                } => {
                    let host = if *to_second { second } else { first };
                    let mut message = reply(*slot, 0, *index, *nonce);
                    if let Some(corruption) = corruption {
                        corruption.apply(&mut message);
                    }
                    let rejected = &host.shared.counters().probes_rejected;
                    let before = rejected.get();
                    udp.send_to(&message, host.probe_address())
                        .expect("the reply can be sent");
                    host.receive();
                    assert!(
                        rejected.get() > before,
                        "a reply from another address was accepted"
                    );
                }
                Arrival::Probe {
                    index,
                    nonce,
                    corruption,
                } => {
                    let mut message = probe(*index, *nonce);
                    if let Some(corruption) = corruption {
                        corruption.apply(&mut message);
                    } else if *index != u16::MAX {
                        // Index 0xffff would make it a packet to the multicast queue pair number.
                        probed = Some((*index, *nonce));
                    }
                    udp.send_to(&message, (own_address(0), urxe_net::ROCE_PORT))
                        .expect("the probe can be sent");
                    sent = Some((message, false));
                }
            }
            // A forwarded datagram needs a second round.
            let mut got = [Vec::new(), Vec::new()];
            for _ in 0..2 {
                got[0].extend(first.receive());
                got[1].extend(second.receive());
            }
            let Some((bytes, sealed)) = sent else {
                continue;
            };
            let arrived: Vec<_> = got.iter().flatten().collect();
            assert!(
                arrived.iter().all(|datagram| **datagram == bytes),
                "a datagram was changed: {step:02x?}, received {arrived:02x?}"
            );
            assert!(arrived.len() <= 1, "a datagram was received twice");
            if !sealed && !arrived.is_empty() {
                // One in 65536 random ICRCs matches some IP ID. Such a datagram changes the state.
                return;
            }
            if sealed && bytes.len() >= 16 {
                for (host, got) in [first, second].into_iter().zip(&got) {
                    if let Some(owns) = host.owns(&bytes) {
                        assert_eq!(got.len(), usize::from(owns), "slot {}", host.shared.slot());
                    }
                }
            }
            // A probe gets at most one reply, which is not longer than it. Others get no reply.
            let mut buffer = [0; 2000];
            let mut replies = Vec::new();
            while let Ok(len) = udp.recv(&mut buffer) {
                replies.push(buffer[..len].to_vec());
            }
            assert!(replies.len() <= 1 && replies.iter().all(|reply| reply.len() <= bytes.len()));
            if let Some((index, nonce)) = probed {
                // The first process has one socket, the second four.
                let of_second = (0..4).map(|number| (other, 0x30 | number));
                let mut sockets = [(own, 0)].into_iter().chain(of_second);
                assert!(
                    sockets.any(|(slot, at)| replies.contains(&reply(slot, at, index, nonce))),
                    "probe {index:#x} {nonce:02x?}: {replies:02x?}"
                );
            }
        }
    }
}
