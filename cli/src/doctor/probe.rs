//! Probes of the path to a peer: datagrams to UDP port 4791, as RoCE uses, which `urxe doctor
//! --listen` returns.
//!
//! A probe is a UDP datagram of the length of a RoCE packet of some path MTU. Its content is no
//! RoCE packet, so other RoCE endpoints drop it by its ICRC. An answer has the length of its probe
//! and another first word, so a listener neither amplifies nor answers answers.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use urxe_driver::device;
use urxe_net::{LocalAddress, OpenError, ROCE_PORT, open_exclusive};

use super::check::Check;
use super::host::set_option;

const PROBE: &[u8; 16] = b"urxe probe  0001";
const ANSWER: &[u8; 16] = b"urxe answer 0001";

/// The bytes of a RoCE packet beside the data of a path MTU: BTH, RETH and ICRC.
const HEADERS: usize = 12 + 16 + 4;

/// The path MTUs, the longest first.
const MTUS: [usize; 5] = [4096, 2048, 1024, 512, 256];

/// The probes of each length, because a network may lose some.
const ATTEMPTS: u32 = 3;
/// The time to wait for each answer.
const TIMEOUT: Duration = Duration::from_millis(400);

/// An error that prevents answering probes.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    #[error("the devices cannot be listed: {0}")]
    Devices(io::Error),
    #[error("no device has an address; `urxe devices` shows why")]
    NoAddress,
    #[error("{0}; for the probes, end the urxe programs at that address")]
    Open(#[from] OpenError),
    #[error("receiving failed: {0}")]
    Receive(#[from] io::Error),
}

/// Answers probes at the addresses of all devices. Returns on errors only.
pub(super) fn listen() -> Result<Infallible, ListenError> {
    let mut sockets = Vec::new();
    for device in device::devices().map_err(ListenError::Devices)? {
        for (index, _) in device.gids() {
            let index = u8::try_from(index).ok();
            if let Some(address) = index.and_then(|index| device.source(index)) {
                sockets.push((address, open_exclusive(address)?));
            }
        }
    }
    let mut threads = Vec::new();
    for (address, socket) in sockets {
        println!("answering at {}, UDP port {ROCE_PORT}", address.ip());
        threads.push(thread::spawn(move || answer(&socket)));
    }
    for thread in threads {
        // A panic has been reported by its thread.
        thread.join().unwrap_or(Ok(()))?;
    }
    Err(ListenError::NoAddress)
}

/// Answers probes at one socket. Returns on errors only.
fn answer(socket: &UdpSocket) -> io::Result<()> {
    let mut bytes = vec![0; usize::from(u16::MAX)];
    loop {
        let (len, from) = match socket.recv_from(&mut bytes) {
            Ok(received) => received,
            // An ICMP message about an earlier answer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if len < PROBE.len() || !bytes.starts_with(PROBE) {
            continue;
        }
        bytes[..ANSWER.len()].copy_from_slice(ANSWER);
        // The prober repeats a probe whose answer cannot be sent.
        let _ = socket.send_to(&bytes[..len], from);
    }
}

/// Probes the path to a peer.
pub(super) fn peer(peer: IpAddr) -> Check {
    const NAME: &str = "peer";
    let to = LocalAddress::new(peer, 0).with_port(ROCE_PORT);
    let socket = match connected(to) {
        Ok(socket) => socket,
        Err(error) => {
            return Check::failure(
                NAME,
                format!("no route to {peer}: {error}"),
                "check the address and `ip route get`",
            );
        }
    };
    let mut refused = false;
    for mtu in MTUS {
        match exchange(&socket, mtu + HEADERS) {
            Ok(Some(round_trip)) => {
                let found = format!(
                    "{peer} answers in {} us, path MTU {mtu}",
                    round_trip.as_micros()
                );
                return match mtu {
                    512 | 256 => Check::warning(
                        NAME,
                        found,
                        "the path permits short packets only; an MTU of 1500 permits 1024",
                    ),
                    _ => Check::ok(NAME, found),
                };
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refused = true;
                break;
            }
            Err(error) => {
                return Check::failure(
                    NAME,
                    format!("{peer}: sending failed: {error}"),
                    "permit UDP to port 4791 in the firewall of this host",
                );
            }
        }
    }
    match refused {
        true => Check::failure(
            NAME,
            format!("{peer} is reachable, and no program answers at UDP port {ROCE_PORT}"),
            "run `urxe doctor --listen` there",
        ),
        false => Check::failure(
            NAME,
            format!("{peer} does not answer at UDP port {ROCE_PORT}"),
            "if `urxe doctor --listen` runs there, a firewall drops the packets: permit UDP port \
             4791 in both directions",
        ),
    }
}

fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    // RoCE packets are never fragmented.
    match to {
        SocketAddr::V4(_) => set_option(
            &socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )?,
        SocketAddr::V6(_) => set_option(
            &socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        )?,
    }
    socket.connect(to)?;
    Ok(socket)
}

/// Sends probes of this length. Returns the shortest round trip, or `None` without an answer.
fn exchange(socket: &UdpSocket, len: usize) -> io::Result<Option<Duration>> {
    let mut probe = vec![0; len];
    probe[..PROBE.len()].copy_from_slice(PROBE);
    let mut received = vec![0; len + 1];
    let mut shortest: Option<Duration> = None;
    for attempt in 0..ATTEMPTS {
        // Distinguishes the answers of attempts and lengths.
        probe[PROBE.len()..PROBE.len() + 4].copy_from_slice(&attempt.to_be_bytes());
        let sent = Instant::now();
        match socket.send(&probe) {
            Ok(_) => {}
            // Longer than the interface permits.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => return Ok(None),
            Err(error) => return Err(error),
        }
        while sent.elapsed() < TIMEOUT {
            match socket.recv(&mut received) {
                Ok(got) => {
                    let same = received[ANSWER.len()..len] == probe[ANSWER.len()..];
                    if got == len && received.starts_with(ANSWER) && same {
                        let round_trip = sent.elapsed();
                        shortest = Some(shortest.map_or(round_trip, |s| s.min(round_trip)));
                        break;
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_the_length_of_its_probe_and_is_not_answered() {
        let listener = UdpSocket::bind(("127.0.0.1", 0)).expect("a loopback interface");
        let to = listener.local_addr().expect("bound");
        thread::spawn(move || answer(&listener));
        let socket = connected(to).expect("a route");
        assert!(exchange(&socket, 4096 + HEADERS).expect("sent").is_some());

        let mut datagram = vec![0; 100];
        datagram[..ANSWER.len()].copy_from_slice(ANSWER);
        socket.send(&datagram).expect("sent");
        // The next datagram answers the probe, not the answer before it.
        let mut probe = vec![7; 50];
        probe[..PROBE.len()].copy_from_slice(PROBE);
        socket.send(&probe).expect("sent");
        let mut received = [0; 200];
        assert_eq!(socket.recv(&mut received).expect("an answer"), probe.len());
    }
}
