//! A multicast group that this process has joined.
//!
//! A unicast datagram goes to one of the sockets that share port 4791; a multicast datagram goes to
//! each socket bound to the group. So it is neither steered nor forwarded.

use crate::error::OpenError;
use crate::process_socket::ProcessSocket;
use crate::receive::{Datagram, RecvBatch};
use crate::sharing::Shared;
use crate::socket::{LocalAddress, open_group_receiver};
use crate::wire::Wire;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A multicast group joined on an interface. Dropping it leaves the group.
pub struct Group {
    shared: Arc<Shared>,
    wire: Arc<Wire>,
    address: LocalAddress,
    receiver: ProcessSocket,
}

impl Group {
    pub(super) fn join(
        shared: Arc<Shared>,
        wire: Arc<Wire>,
        address: LocalAddress,
    ) -> Result<Self, OpenError> {
        let receiver = open_group_receiver(address, shared.options().gro)?;
        Ok(Group {
            shared,
            wire,
            address,
            receiver,
        })
    }

    /// The group, which is the destination of its datagrams.
    pub fn address(&self) -> LocalAddress {
        self.address
    }

    /// The receiving socket. When it is readable, call [`Group::recv`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    /// Receives once, and calls `f` with each datagram whose ICRC is correct. Returns the number of
    /// messages from the kernel: 0 when there was none; otherwise more may be queued.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn recv(
        &self,
        batch: &mut RecvBatch,
        mut f: impl FnMut(&Datagram<'_>),
    ) -> io::Result<usize> {
        let socket = self.receiver.as_fd();
        self.shared
            .recv(socket, self.address, batch, |arrival, senders| {
                for mut datagram in arrival.datagrams() {
                    self.wire.deliver(senders, &mut datagram, &mut f);
                }
            })
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Group").field(&self.address).finish()
    }
}
