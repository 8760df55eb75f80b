//! Private items for the fuzz target `sharing`: the steering program by itself, and in a group of
//! sockets where the kernel runs it.

use crate::address::{LocalAddress, ROCE_PORT};
use crate::error::OpenError;
use crate::process_socket::ProcessSocket;
use crate::socket::open_receiver;
use crate::steering::open_probe_socket;
use crate::steering::program::{self, SocketIndices};
use socket2::Socket;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// An instruction: its code, its jump distances if true and if false, and its operand.
pub type Instruction = (u16, u8, u8, u32);

/// Returns the steering program for the index of each socket, by its slot and number, see
/// `steering`.
pub fn program(indices: &SocketIndices, others: Option<u16>) -> Vec<Instruction> {
    program::code(&program::distribution(indices), others)
        .iter()
        .map(|op| (op.code, op.jt, op.jf, op.k))
        .collect()
}

/// Sockets that share port 4791 of an address.
#[derive(Debug)]
pub struct SharedPort {
    address: LocalAddress,
    receivers: Vec<ProcessSocket>,
    sender: Socket,
}

impl SharedPort {
    /// Opens `count` sockets.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn open(address: LocalAddress, count: usize) -> Result<SharedPort, OpenError> {
        let receivers = (0..count).map(|_| open_receiver(address, false));
        Ok(SharedPort {
            address,
            receivers: receivers.collect::<Result<_, _>>()?,
            sender: open_probe_socket(address)?,
        })
    }

    /// Attaches the steering program for these socket indices.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&self, indices: &SocketIndices, others: Option<u16>) -> io::Result<()> {
        let receiver = self.receivers.first().ok_or(io::ErrorKind::NotFound)?;
        program::attach(receiver.as_fd(), &program::distribution(indices), others)
    }

    /// Sends a datagram, and returns the index of the socket that receives it.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn receiver_of(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let to = self.address.with_port(ROCE_PORT).into();
        self.sender.send_to(bytes, &to)?;
        let mut buffer = [MaybeUninit::uninit(); 64];
        Ok(self
            .receivers
            .iter()
            .position(|r| r.recv(&mut buffer).is_ok()))
    }
}
