//! Names that the kernel gives to one process at a time: those of Unix sockets in the abstract
//! namespace.
//!
//! They belong to the network namespace, as ports do, and are free again when their process ends,
//! however it ends. Nothing is left on disk, ever.

use crate::process_socket::ProcessSocket;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::Shutdown;

/// A name that this process holds.
#[derive(Debug)]
pub struct Name {
    /// It is there to have the name, and takes no messages: anybody could fill it with descriptors
    /// whose closing blocks, and closing the socket would close them.
    _socket: ProcessSocket,
}

impl Name {
    /// Takes a name. `None` when somebody has it.
    pub fn take(name: &str) -> io::Result<Option<Name>> {
        let socket = socket()?;
        socket.shutdown(Shutdown::Read)?;
        match socket.bind(&address(name)?) {
            Ok(()) => Ok(Some(Name { _socket: socket })),
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Looks names up.
#[derive(Debug)]
pub struct Lookup(ProcessSocket);

impl Lookup {
    /// Opens the socket that looks names up.
    ///
    /// # Errors
    /// The system's, when no socket can be had.
    pub fn new() -> io::Result<Lookup> {
        socket().map(Lookup)
    }

    /// Whether somebody has a name, this process included.
    pub fn is_taken(&self, name: &str) -> io::Result<bool> {
        // Connecting a datagram socket only looks the name up, and may be done again and again.
        match self.0.connect(&address(name)?) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(false),
            // Somebody is there who does not talk to everybody.
            Err(_) => Ok(true),
        }
    }
}

/// A Unix datagram socket that neither blocks nor survives exec.
fn socket() -> io::Result<ProcessSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    Socket::new(Domain::UNIX, kind, None).map(ProcessSocket::from)
}

/// The address of a name.
pub(super) fn address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0urxe/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_s_own_until_it_is_dropped() {
        let name = format!("test/names/{}", std::process::id());
        let lookup = Lookup::new().unwrap();
        assert!(!lookup.is_taken(&name).unwrap());
        let held = Name::take(&name).unwrap().unwrap();
        assert!(lookup.is_taken(&name).unwrap());
        assert!(Name::take(&name).unwrap().is_none());
        drop(held);
        assert!(Name::take(&name).unwrap().is_some());
    }

    #[test]
    fn a_name_takes_no_messages() {
        let name = format!("test/names/{}/messages", std::process::id());
        let _held = Name::take(&name).unwrap().unwrap();
        let to = address(&name).unwrap();
        let sent = socket().unwrap().send_to(b"message", &to);
        assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPIPE));
    }
}
