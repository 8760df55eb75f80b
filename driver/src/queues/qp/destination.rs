//! The share of a reliable connection in the in-flight limit of its destination.

use super::transport::Transport;
use crate::scheduling::destinations::DestinationLimiter;
use crate::scheduling::limits::SEND_QUANTUM;
use std::sync::Arc;

/// The share of one connection `T` in the limiter of its destination, a process of this host.
#[derive(Debug)]
pub(crate) struct DestinationShare<T> {
    limiter: Arc<DestinationLimiter<T>>,
    /// Bytes in flight that the limiter counts for this connection.
    counted: u32,
    /// Whether a transport timer has expired and no packet has been accepted since. The packets
    /// sent may be lost, so they count as 0 bytes in flight.
    is_silent: bool,
    /// Whether the connection is in the limiter's FIFO.
    waits: bool,
}

impl<T> DestinationShare<T> {
    /// Returns the share of a connection with nothing in flight.
    pub(super) fn new(limiter: &Arc<DestinationLimiter<T>>) -> Self {
        DestinationShare {
            limiter: Arc::clone(limiter),
            counted: 0,
            is_silent: false,
            waits: false,
        }
    }

    /// Reports the connection's bytes in flight to the limiter.
    pub(super) fn count(&mut self, bytes_in_flight: u32) {
        let in_flight = match self.is_silent {
            true => 0,
            false => bytes_in_flight,
        };
        if in_flight != self.counted {
            self.limiter.changed(self.counted, in_flight);
            self.counted = in_flight;
        }
    }

    /// Sets whether a transport timer has expired with no packet accepted since.
    pub(super) fn set_silent(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Grants a quantum: the connection has reached the head of the FIFO.
    pub(super) fn granted(&mut self, transport: &mut Transport) {
        self.waits = false;
        transport.renew_send_quantum(SEND_QUANTUM);
        // Others wait as well, so the next one will probably not be had at once either.
        transport.refuse_send_quantum();
    }

    /// Renews a quantum that is used up, if it is granted at once. Otherwise the connection sends
    /// what needs no quantum, such as an ACK, before it requests one: then the first data would
    /// follow in another batch.
    pub(super) fn renew_spent(&self, transport: &mut Transport) {
        if transport.has_spent_send_quantum() && !self.waits && self.limiter.is_free() {
            transport.renew_send_quantum(SEND_QUANTUM);
        }
    }

    /// Requests a quantum for a connection that needs another one. Returns whether there is more to
    /// send now: with the quantum, if it is granted at once, or with the rest of the last one.
    /// Without a grant `connection` joins the FIFO.
    pub(super) fn request(&mut self, connection: &Arc<T>, transport: &mut Transport) -> bool {
        self.count(transport.status().bytes_in_flight);
        if !self.waits {
            if self.limiter.is_free() {
                transport.renew_send_quantum(SEND_QUANTUM);
                return true;
            }
            self.waits = true;
            self.limiter.wait(Arc::clone(connection));
        }
        transport.refuse_send_quantum()
    }
}

impl<T> Drop for DestinationShare<T> {
    fn drop(&mut self) {
        self.limiter.changed(self.counted, 0);
    }
}
