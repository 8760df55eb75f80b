//! The UDP socket of a datagram socket.

use super::super::error::Error;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recvfrom,
    sendto, socket_with,
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

/// Returns the source address for datagrams to `to`: the socket's own, or that of the route to `to`
/// if the socket is bound to no address. A loopback address counts as none, as in librdmacm's
/// `rs_any_addr`: a connect to a peer at loopback may have set it.
///
/// Binds the socket to a free port if it has none, since datagrams over queue pairs name the port
/// too, and peers answer to it.
pub(super) fn source_for(udp: &OwnedFd, to: SocketAddr) -> Result<SocketAddr, Error> {
    let mut own = name(udp)?;
    if own.port() == 0 {
        bind(udp, &own)?;
        own = name(udp)?;
    }
    let loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    if !own.ip().is_unspecified() && !loopback(own.ip()) {
        return Ok(own);
    }
    let mut source = resolve::source_for(to)?;
    source.set_port(own.port());
    Ok(source)
}

fn name(udp: &OwnedFd) -> Result<SocketAddr, Error> {
    Ok(SocketAddr::try_from(getsockname(udp)?)?)
}

/// Sends a datagram that consists of these pieces.
pub(super) fn send(udp: &OwnedFd, pieces: &[&[u8]], to: SocketAddr) -> Result<(), Error> {
    sendto(udp, &pieces.concat(), SendFlags::DONTWAIT, &to)?;
    Ok(())
}

/// Receives a datagram and its sender's address; `None` if there is none, or on an error.
pub(super) fn receive(udp: &OwnedFd, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let (len, _, from) = recvfrom(udp, buffer, RecvFlags::DONTWAIT).ok()?;
    Some((len, SocketAddr::try_from(from?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbound_socket_gets_the_port_that_its_datagrams_name() {
        let udp = open(false).unwrap();
        let source = source_for(&udp, "127.0.0.1:1".parse().unwrap()).unwrap();
        assert_ne!(source.port(), 0);
        assert_eq!(source.port(), name(&udp).unwrap().port());
        assert!(name(&udp).unwrap().ip().is_unspecified());
    }
}
