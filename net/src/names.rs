//! Names that the kernel gives to one process at a time: those of Unix sockets in the abstract
//! namespace.
//!
//! They belong to the network namespace, as ports do, and are free again when their process ends,
//! however it ends. Nothing is left on disk, ever.

use crate::process_socket::ProcessSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Uid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

/// A name that this process holds.
#[derive(Debug)]
pub struct Name {
    /// Nobody reads from it; it is there to have the name.
    _socket: ProcessSocket,
}

impl Name {
    /// Takes a name. `None` when somebody has it.
    pub fn take(name: &str) -> io::Result<Option<Name>> {
        let socket = socket()?;
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

/// That this process lives, for whoever wants to know when it ends: others connect to a name, and are
/// hung up on by the kernel.
#[derive(Debug)]
pub(super) struct Presence {
    listener: ProcessSocket,
    guests: Mutex<Vec<ProcessSocket>>,
}

impl Presence {
    /// How many are let in. More wait outside, where they see the end as well.
    const GUESTS: usize = 255;

    /// Takes a name. `None` when somebody has it.
    pub(super) fn announce(name: &str) -> io::Result<Option<Presence>> {
        let listener = connected_socket()?;
        match listener.bind(&address(name)?) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => return Ok(None),
            Err(e) => return Err(e),
        }
        listener.listen(libc::SOMAXCONN)?;
        Ok(Some(Presence {
            listener,
            guests: Mutex::default(),
        }))
    }

    /// Becomes readable, by an edge, when [`Presence::welcome`] has something to do.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Lets in who has come, and forgets who has left: the queue outside has little room.
    pub(super) fn welcome(&self) {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|guest| !has_hung_up(guest.as_fd()));
        while guests.len() < Self::GUESTS
            && let Ok((guest, _)) = self.listener.accept()
        {
            guests.push(ProcessSocket::from(guest));
        }
    }
}

/// Sees the end of a process that has announced its presence.
#[derive(Debug)]
pub struct Watch(ProcessSocket);

impl Watch {
    /// Watches the process that has a name now. `None` when nobody has it, or too many watch.
    pub(super) fn of(name: &str) -> io::Result<Option<Watch>> {
        let socket = connected_socket()?;
        match socket.connect(&address(name)?) {
            Ok(()) => Ok(Some(Watch(socket))),
            Err(e) => match e.raw_os_error() {
                Some(libc::ECONNREFUSED | libc::EAGAIN) => Ok(None),
                _ => Err(e),
            },
        }
    }

    /// Becomes readable at the end.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The user of the process, for whom the kernel vouches.
    pub(super) fn user(&self) -> io::Result<Uid> {
        Ok(socket_peercred(self.fd())?.uid)
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        has_hung_up(self.fd())
    }
}

fn has_hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// One that is connected, and that neither blocks nor survives exec.
fn connected_socket() -> io::Result<ProcessSocket> {
    let kind = Type::SEQPACKET.nonblocking().cloexec();
    Socket::new(Domain::UNIX, kind, None).map(ProcessSocket::from)
}

/// A Unix datagram socket that neither blocks nor survives exec.
pub(super) fn socket() -> io::Result<ProcessSocket> {
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
}
