//! Batches that wait for room in a socket.

use crate::ports::route::Route;
use urxe_net::SendBatch;
use urxe_proto::time::Time;

/// A batch for which the socket has no room. The queue pair sends nothing else until the batch is
/// sent or dropped, so packets keep their order. The kernel reports room (`path::writable`). No
/// thread sleeps for it, since every sender holds at least the lock of its queue pair.
pub(super) struct Stalled {
    pub(super) batch: Box<SendBatch>,
    pub(super) route: Route,
    /// The time at which the batch is dropped.
    pub(super) until: Time,
}
