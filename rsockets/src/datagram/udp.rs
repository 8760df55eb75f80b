//! The UDP socket of a datagram socket.

use super::super::error::Error;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, getsockname, recvfrom, sendto,
    socket_with,
};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use urxe_driver::cm::resolve;

/// Opens a UDP socket.
pub(super) fn open(v6: bool) -> Result<OwnedFd, Error> {
    let family = match v6 {
        true => AddressFamily::INET6,
        false => AddressFamily::INET,
    };
    Ok(socket_with(
        family,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Returns the source address for datagrams to `to`.
pub(super) fn source_for(udp: &OwnedFd, to: SocketAddr) -> Result<SocketAddr, Error> {
    let own = SocketAddr::try_from(getsockname(udp)?)?;
    let loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    if !own.ip().is_unspecified() && !loopback(own.ip()) {
        return Ok(own);
    }
    let mut source = resolve::source_for(to)?;
    source.set_port(own.port());
    Ok(source)
}

/// Sends a datagram that consists of these pieces.
pub(super) fn send(udp: &OwnedFd, pieces: &[&[u8]], to: SocketAddr) -> Result<(), Error> {
    sendto(udp, &pieces.concat(), SendFlags::DONTWAIT, &to)?;
    Ok(())
}

/// Receives a datagram and its sender's address.
pub(super) fn receive(udp: &OwnedFd, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let (len, _, from) = recvfrom(udp, buffer, RecvFlags::DONTWAIT).ok()?;
    Some((len, SocketAddr::try_from(from?).ok()?))
}
