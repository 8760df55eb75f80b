//! Connections that are there, and what is said when they are made.

use super::error::Error;
use super::port::{Port, of_connection, of_service};
use crate::device::Device;
use crate::qp::{PreparedQueuePair, QueuePair};
use crate::wait;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use urxe_driver::cm::resolve::Bound;
use urxe_driver::cm::{self, EventKind, Id, Offer};
use urxe_driver::qp::ModifyError;
use urxe_proto::cm::wire::{RejectReason, SidrStatus};
use urxe_proto::qp::{QpState, QpType};

/// What an end says of itself when it asks for a connection or accepts one. (`rdma_conn_param`.)
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// For the peer's program: at most 56 bytes with a request, 196 when accepting. (Default: none.)
    pub private_data: Vec<u8>,
    /// READs and atomics under way at a time, at most; what the peer can answer is a limit too.
    /// 0 to 128. (`initiator_depth`; default 16.)
    pub max_rd_atomic: u8,
    /// How often both ends send again without an answer, 0 to 7; who asks for the connection says it.
    /// (Default 7.)
    pub retry_cnt: u8,
    /// How often the peer sends again when there is no receive here: 0 to 6, 7 for ever. (Default 7.)
    pub rnr_retry: u8,
    /// The type of service (IPv4), or traffic class (IPv6), of the packets of both ends, their DSCP above all;
    /// who asks for the connection says it. (`RDMA_OPTION_ID_TOS`; default 0.)
    pub type_of_service: u8,
    /// The ACK timeout of this end, 4.096 us x 2^n for n from 1 to 31; 0 waits for ever. If `None`, it is made of what
    /// both ends say of their delays. (`RDMA_OPTION_ID_ACK_TIMEOUT`.)
    pub ack_timeout: Option<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            private_data: Vec::new(),
            max_rd_atomic: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            type_of_service: 0,
            ack_timeout: None,
        }
    }
}

impl Options {
    /// The usual ones, with private data.
    pub fn saying(private_data: &[u8]) -> Options {
        Options {
            private_data: private_data.to_vec(),
            ..Options::default()
        }
    }

    /// What an identifier is to know of it before it has a connection.
    pub(super) fn apply_timeout(&self, id: &Id) -> Result<(), Error> {
        match self.ack_timeout {
            Some(timeout) => Ok(id.set_ack_timeout(timeout)?),
            None => Ok(()),
        }
    }

    /// What is said for a queue pair, but for READs and atomics.
    pub(super) fn offer(&self, qp: &PreparedQueuePair) -> Offer {
        Offer {
            private_data: self.private_data.clone(),
            qpn: qp.qpn(),
            srq: qp.shares_receives(),
            retry_count: self.retry_cnt,
            rnr_retry_count: self.rnr_retry,
            ..Offer::default()
        }
    }
}

/// What happens to a connection. (`rdma_cm_event`.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The peer has ended it, or agrees that it is ended; or does not say so in time. The queue pair
    /// sends no more.
    Disconnected,
    /// It was ended, and no packet of it can be under way any more.
    TimeWaitExit,
    /// The interface is gone.
    DeviceRemoved,
    /// The interface has another link address: the peer may have to find it anew.
    LinkAddressChanged,
}

/// A connection. Dropping it ends it.
///
/// Its descriptor is readable while events wait, for use with `poll`, epoll or an async runtime; then
/// [`Connection::try_next`] takes them.
#[derive(Debug)]
pub struct Connection {
    /// Goes first: when the queue pair goes, the peer has been told.
    port: Port,
    qp: QueuePair,
    private_data: Vec<u8>,
}

impl Connection {
    pub(super) fn new(port: Port, qp: QueuePair, private_data: Vec<u8>) -> Connection {
        Connection {
            port,
            qp,
            private_data,
        }
    }

    /// Its queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.qp
    }

    /// What the peer's program said when it asked or accepted, with the zeros that fill the message:
    /// 56 bytes of a request, 196 of an acceptance.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Our address and port. (`rdma_get_local_addr`.)
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.port.id.addresses().source
    }

    /// The peer's address and port. (`rdma_get_peer_addr`.)
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.port.id.addresses().destination
    }

    /// Takes the next event, waiting for one. (`rdma_get_cm_event`, with the acknowledgement.)
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn next(&self) -> Result<Event, Error> {
        wait::endlessly(|| self.next_until(None))
    }

    /// Takes the next event, waiting for at most `timeout`; `None` when none came.
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        self.next_until(wait::deadline(timeout))
    }

    /// Takes an event if there is one.
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn try_next(&self) -> Result<Option<Event>, Error> {
        self.next_timeout(Duration::ZERO)
    }

    fn next_until(&self, until: Option<Instant>) -> Result<Option<Event>, Error> {
        while let Some(event) = self.port.next(until)? {
            let event = match event.kind {
                // A peer that rejects what it had accepted ends it, too.
                EventKind::Disconnected | EventKind::Rejected => {
                    // Nobody answers what is sent from now on; in error it is there already.
                    let _ = self.qp.fail();
                    Event::Disconnected
                }
                EventKind::TimewaitExit => Event::TimeWaitExit,
                EventKind::DeviceRemoval => Event::DeviceRemoved,
                EventKind::AddressChange => Event::LinkAddressChanged,
                _ => continue,
            };
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// Ends it: what is outstanding completes as flushed, and the peer is told, who answers with
    /// [`Event::Disconnected`]. Agrees, where the peer has ended it. (`rdma_disconnect`.)
    ///
    /// # Errors
    /// [`Error::Modify`] when the queue pair cannot go to error.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.qp.fail()?;
        Ok(self.port.id.disconnect()?)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }
}

impl Error {
    /// What an event says that is not the one hoped for.
    pub(super) fn of(event: cm::Event) -> Error {
        match event.kind {
            EventKind::Rejected => Error::Rejected {
                reason: RejectReason(event.status.try_into().unwrap_or_default()),
                private_data: of_connection(event.details).private_data,
            },
            EventKind::Disconnected => Error::Disconnected,
            EventKind::DeviceRemoval | EventKind::AddressError => Error::DeviceGone,
            EventKind::Unreachable if event.status > 0 => Error::NoService {
                status: SidrStatus(event.status.try_into().unwrap_or(u8::MAX)),
                private_data: of_service(event.details).private_data,
            },
            _ => Error::Unreachable,
        }
    }
}

/// Refuses the queue pair of another device than the one at which the way begins.
pub(super) fn check_device(given: &Device, bound: &Bound) -> Result<(), Error> {
    match Arc::ptr_eq(&given.0, &bound.device) {
        true => Ok(()),
        false => Err(Error::OtherDevice {
            given: given.name().to_owned(),
            needed: Device(Arc::clone(&bound.device)).name().to_owned(),
        }),
    }
}

impl PreparedQueuePair {
    /// Refuses one that is not for reliable connections from this address.
    pub(super) fn check_for(&self, bound: &Bound) -> Result<(), Error> {
        if self.service() != QpType::Rc {
            return Err(Error::NotReliable);
        }
        check_device(&self.device(), bound)
    }

    /// Connects it as an identifier's connection says; how many READs and atomics it answers, and may have
    /// outstanding, may be given.
    pub(super) fn connect_by(
        self,
        id: &Id,
        resources: Option<(u8, u8)>,
    ) -> Result<QueuePair, Error> {
        let mut steps = Vec::new();
        for state in [QpState::Rtr, QpState::Rts] {
            let (mut attr, mask) = id.qp_attributes(state)?;
            if let Some((responder_resources, initiator_depth)) = resources {
                attr.max_dest_rd_atomic = responder_resources;
                attr.max_rd_atomic = initiator_depth;
            }
            steps.push((attr, mask));
        }
        let connected: Result<QueuePair, ModifyError> = self.connect_with(&steps);
        Ok(connected?)
    }
}
