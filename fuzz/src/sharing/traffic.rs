//! Two processes of an address, and what others send them.

use super::{Packet, QPN, connected, flow, own_address};
use arbitrary::Arbitrary;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use urxe_net::{Datagram, LocalAddress, Options, RecvBatch, SLOTS, Shared};
use urxe_proto::ids::Qpn;

/// What reaches two processes of one address.
#[derive(Arbitrary, Debug)]
pub struct Traffic {
    steps: Vec<Arrival>,
}

#[derive(Arbitrary, Debug)]
enum Arrival {
    /// A datagram, at port 4791.
    Packet(Packet),
    /// A message of a process that passes something on; or anything else.
    Message {
        second: bool,
        header: Option<Header>,
        bytes: Vec<u8>,
    },
    /// As a process that is another one's neighbour answers a probe that nobody has sent.
    Answer {
        second: bool,
        slot: u8,
        index: u16,
        nonce: [u8; 16],
        spoiled: Option<Spoiled>,
    },
    /// A probe, which whoever gets it answers.
    Probe {
        index: u16,
        nonce: [u8; 16],
        spoiled: Option<Spoiled>,
    },
}

/// What is wrong with a message of a sweep.
#[derive(Arbitrary, Debug)]
enum Spoiled {
    Byte(u8, u8),
    Longer(Vec<u8>),
    Shorter(u8),
}

impl Spoiled {
    fn spoil(&self, message: &mut Vec<u8>) {
        match self {
            Spoiled::Byte(at, byte) => {
                let at = usize::from(*at) % message.len();
                message[at] ^= byte;
            }
            Spoiled::Longer(bytes) => message.extend(bytes.iter().take(100)),
            Spoiled::Shorter(len) => message.truncate((*len).into()),
        }
    }
}

/// An answer as `steering.rs` has it.
fn answer(slot: u8, index: u16, nonce: [u8; 16]) -> Vec<u8> {
    let mut answer = b"urxa".to_vec();
    answer.extend([slot, 0]);
    answer.extend(index.to_be_bytes());
    answer.extend(nonce);
    answer
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

/// A probe, likewise.
fn probe(index: u16, nonce: [u8; 16]) -> Vec<u8> {
    let mut probe = vec![0xff, 0, 0, 0, 0, SLOTS];
    probe.extend(index.to_be_bytes());
    probe.extend(b"urxp");
    probe.extend(nonce);
    probe
}

/// The header of what is passed on.
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
    /// As `forward.rs` has it.
    fn shown(&self) -> Vec<u8> {
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

/// As a process, with an endpoint at the address that both have.
pub(super) struct Host {
    pub(super) shared: Arc<Shared>,
    endpoint: urxe_net::Endpoint,
    batch: Mutex<RecvBatch>,
}

/// The two, which live as long as the program.
pub(super) fn hosts() -> &'static [Host; 2] {
    static HOSTS: OnceLock<[Host; 2]> = OnceLock::new();
    HOSTS.get_or_init(|| {
        let hosts = [(); 2].map(|()| {
            let shared = Shared::new(Options::default()).expect("a slot");
            let address = LocalAddress::new(own_address(0).into(), 1);
            let endpoint = shared.open(address).expect("the port");
            Host {
                shared,
                endpoint,
                batch: Mutex::default(),
            }
        });
        // Until both know each other's place.
        for _ in 0..100 {
            hosts.iter().for_each(|host| drop(host.turn()));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        hosts
    })
}

impl Host {
    /// Takes what has arrived, which is for this process.
    fn turn(&self) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let mut take = |datagram: &Datagram<'_>| got.push(datagram.bytes.to_vec());
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        self.endpoint
            .service(&mut batch, &mut take)
            .expect("sockets that work");
        while self
            .endpoint
            .recv(&mut batch, &mut take)
            .expect("a socket that works")
            > 0
        {}
        while self
            .shared
            .recv_forwarded(&mut batch, &mut take)
            .expect("a socket that works")
            > 0
        {}
        self.shared.answer_questions(Vec::new);
        got
    }

    /// Where it asks for the others' places.
    fn asks_from(&self) -> std::net::SocketAddr {
        let copy = self.endpoint.service_fd().try_clone_to_owned();
        let asker = UdpSocket::from(copy.expect("a descriptor"));
        asker.local_addr().expect("a bound socket")
    }

    /// Whether a sealed datagram is for this process, and not the one in slot `other`; `None` if either may take it,
    /// which is so of messages to queue pair 1.
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
    pub(super) fn tell(self) {
        let [first, second] = hosts();
        // What stories about names have left.
        hosts().iter().for_each(|host| drop(host.turn()));
        let (own, other) = (first.shared.slot(), second.shared.slot());
        let udp = UdpSocket::bind((own_address(0), 0)).expect("a port");
        udp.set_nonblocking(true).expect("a socket that works");
        let port = udp.local_addr().expect("a bound socket").port();
        let flow = flow(own_address(0), port, own_address(0));
        let links = [own, other].map(|slot| connected(&format!("urxe/link/{slot}")));
        for step in self.steps.iter().take(24) {
            let (mut sent, mut asked) = (None, None);
            match step {
                Arrival::Packet(packet) => {
                    let bytes = packet.shown(own, other, &flow);
                    udp.send_to(&bytes, (own_address(0), urxe_net::ROCE_PORT))
                        .expect("it can be sent");
                    sent = Some((bytes, packet.sealed));
                }
                Arrival::Message {
                    second,
                    header,
                    bytes,
                } => {
                    let mut message = header.as_ref().map(Header::shown).unwrap_or_default();
                    message.extend_from_slice(bytes);
                    // The queue has room: it is read after each step.
                    send(&links[usize::from(*second)], &message);
                }
                Arrival::Answer {
                    second: to_second,
                    slot,
                    index,
                    nonce,
                    spoiled,
                } => {
                    let host = if *to_second { second } else { first };
                    let mut message = answer(*slot, *index, *nonce);
                    if let Some(spoiled) = spoiled {
                        spoiled.spoil(&mut message);
                    }
                    let rejected = &host.shared.counters().probes_rejected;
                    let before = rejected.get();
                    udp.send_to(&message, host.asks_from())
                        .expect("it can be sent");
                    host.turn();
                    assert!(
                        rejected.get() > before,
                        "an answer from elsewhere was believed"
                    );
                }
                Arrival::Probe {
                    index,
                    nonce,
                    spoiled,
                } => {
                    let mut message = probe(*index, *nonce);
                    if let Some(spoiled) = spoiled {
                        spoiled.spoil(&mut message);
                    } else if *index != u16::MAX {
                        // That one has the QPN of multicast.
                        asked = Some((*index, *nonce));
                    }
                    udp.send_to(&message, (own_address(0), urxe_net::ROCE_PORT))
                        .expect("it can be sent");
                    sent = Some((message, false));
                }
            }
            // A detour takes a turn of the other.
            let mut got = [Vec::new(), Vec::new()];
            for _ in 0..2 {
                got[0].extend(first.turn());
                got[1].extend(second.turn());
            }
            let Some((bytes, sealed)) = sent else {
                continue;
            };
            let arrived: Vec<_> = got.iter().flatten().collect();
            assert!(
                arrived.iter().all(|datagram| **datagram == bytes),
                "it was changed"
            );
            assert!(arrived.len() <= 1, "it came more than once");
            if !sealed && !arrived.is_empty() {
                // One of 65536 wrong ICRCs is right for some identification, from which more would follow.
                return;
            }
            if sealed && bytes.len() >= 16 {
                for (host, got) in [first, second].into_iter().zip(&got) {
                    if let Some(owns) = host.owns(&bytes) {
                        assert_eq!(got.len(), usize::from(owns), "slot {}", host.shared.slot());
                    }
                }
            }
            // A probe is answered once, with no more than it is; nothing else is answered.
            let mut room = [0; 2000];
            let mut answers = Vec::new();
            while let Ok(len) = udp.recv(&mut room) {
                answers.push(room[..len].to_vec());
            }
            assert!(answers.len() <= 1 && answers.iter().all(|a| a.len() <= bytes.len()));
            if let Some((index, nonce)) = asked {
                let right = [own, other].map(|slot| answer(slot, index, nonce));
                assert!(
                    answers.iter().any(|answer| right.contains(answer)),
                    "probe {index:#x} {nonce:02x?}: {answers:02x?}"
                );
            }
        }
    }
}
