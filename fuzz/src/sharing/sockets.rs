//! Addresses and sockets of the two processes.

use libc::{AF_UNIX, SOCK_SEQPACKET};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use urxe_proto::icrc::{Flow, FlowIcrc};

/// Returns a loopback address that no other process uses.
pub(super) fn own_address(number: u8) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | number, high, low)
}

/// Returns the flow to port 4791.
pub(super) fn flow(from: Ipv4Addr, port: u16, to: Ipv4Addr) -> FlowIcrc {
    let flow = Flow::new((from, port).into(), (to, urxe_net::ROCE_PORT).into());
    FlowIcrc::new(&flow.expect("both addresses are IPv4"))
}

/// Connects to the process that listens under a name, as this user's other processes do.
///
/// # Panics
/// If no process listens under it.
pub(super) fn connected(name: &str) -> OwnedFd {
    let (socket, (address, len)) = (unix(SOCK_SEQPACKET), address(name));
    // SAFETY: the pointer and the length describe `address`, which the call reads.
    let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    assert_eq!(done, 0, "{name}: {}", std::io::Error::last_os_error());
    socket
}

/// Returns the address of an abstract name, and its length.
pub(super) fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeros are a valid `sockaddr_un`, whose fields are integers.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len();
    (address, len as libc::socklen_t)
}

/// Creates a Unix socket.
pub(super) fn unix(kind: i32) -> OwnedFd {
    // SAFETY: the arguments are numbers. The descriptor is new and has no other owner.
    unsafe {
        let fd = libc::socket(AF_UNIX, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}
