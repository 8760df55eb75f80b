//! A multicast group that this process has joined.
//!
//! A unicast datagram goes to one of the sockets that share port 4791; a multicast datagram goes to
//! each socket bound to the group. So it is neither steered nor forwarded.

use crate::address::LocalAddress;
use crate::datagram::Datagram;
use crate::error::OpenError;
use crate::inbound::Inbound;
use crate::process_socket::ProcessSocket;
use crate::receive::RecvBatch;
use crate::socket::open_group_receiver;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// A multicast group joined on an interface. Dropping it leaves the group.
pub struct Group {
    address: LocalAddress,
    receiver: ProcessSocket,
    inbound: Inbound,
}

impl Group {
    /// Joins the group. `gro` requests GRO batches.
    pub(super) fn join(
        address: LocalAddress,
        gro: bool,
        inbound: Inbound,
    ) -> Result<Self, OpenError> {
        Ok(Group {
            address,
            receiver: open_group_receiver(address, gro)?,
            inbound,
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

    /// Receives like [`Endpoint::recv`](crate::Endpoint::recv), from the group.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn recv(&self, batch: &mut RecvBatch, f: impl FnMut(&Datagram<'_>)) -> io::Result<usize> {
        let count = self.fill(batch)?;
        if count > 0 {
            self.deliver(batch, f);
        }
        Ok(count)
    }

    /// The first half of [`Group::recv`]: receives once. Unless it returns 0, the caller must pass
    /// the batch to [`Group::deliver`].
    ///
    /// # Errors
    /// When the socket fails.
    pub fn fill(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.inbound.receive(batch, self.receiver.as_fd())
    }

    /// The second half of [`Group::recv`]: delivers what [`Group::fill`] has received.
    pub fn deliver(&self, batch: &mut RecvBatch, mut f: impl FnMut(&Datagram<'_>)) {
        let mut received = self.inbound.received(batch, self.address);
        while let Some(arrival) = received.next_arrival() {
            for mut datagram in arrival.batch().datagrams() {
                received.deliver(&mut datagram, &mut f);
            }
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Group").field(&self.address).finish()
    }
}
