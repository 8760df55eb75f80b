//! Names that one process holds at a time: those of Unix sockets in the abstract namespace.
//!
//! Like ports they belong to the network namespace. The kernel releases them when the process ends,
//! however it ends, and nothing stays on disk.

use crate::process_socket::ProcessSocket;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::Shutdown;

/// A name that this process holds.
#[derive(Debug)]
pub struct Name {
    /// The socket that is bound to the name. It accepts no messages: any process could send
    /// descriptors whose closing blocks, and closing the socket would close them.
    _socket: ProcessSocket,
}

impl Name {
    /// Takes a name. Returns `None` when another socket has it.
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

/// A socket that resolves names.
#[derive(Debug)]
pub struct Lookup(ProcessSocket);

impl Lookup {
    /// Opens the socket.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn new() -> io::Result<Lookup> {
        socket().map(Lookup)
    }

    /// Whether a socket has this name, of this process or another.
    pub fn is_taken(&self, name: &str) -> io::Result<bool> {
        // Connecting a datagram socket only resolves the name, and may be repeated.
        match self.0.connect(&address(name)?) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(false),
            // The name exists, but its socket refuses this connection.
            Err(_) => Ok(true),
        }
    }
}

/// Opens a non-blocking, close-on-exec Unix datagram socket.
fn socket() -> io::Result<ProcessSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    Socket::new(Domain::UNIX, kind, None).map(ProcessSocket::from)
}

/// Returns the socket address of a name.
pub(super) fn address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0urxe/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_exclusive_until_it_is_dropped() {
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
    fn socket_of_a_name_accepts_no_messages() {
        let name = format!("test/names/{}/messages", std::process::id());
        let _held = Name::take(&name).unwrap().unwrap();
        let to = address(&name).unwrap();
        let sent = socket().unwrap().send_to(b"message", &to);
        assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPIPE));
    }
}
