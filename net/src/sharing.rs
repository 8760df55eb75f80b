//! Sharing UDP port 4791 among the processes of a host.
//!
//! - Each process holds a *slot*, which is the top 8 bits of its QPNs.
//! - Each binds the port with `SO_REUSEPORT`. A *steering* program in the kernel gives every
//!   datagram to a socket of its slot: the fast path.
//! - The indices of the sockets change when processes end, so a datagram may reach the wrong
//!   process. That process *forwards* it to the right one, and starts to learn the new indices: see
//!   `steering`.
//!
//! So a wrong steering program only costs the forwarding. There is no shared file: the kernel
//! assigns and releases the names of the slots, and processes probe for the indices of the sockets.
//! Processes of different users share the slots of a network namespace but not an address: the
//! kernel lets only one user bind it.

use crate::capture::{Capture, CaptureError, CaptureHook};
use crate::clock;
use crate::counters::NetCounters;
use crate::datagram::Datagram;
use crate::error::OpenError;
use crate::forward::{self, Forwarder};
use crate::inbound::Inbound;
use crate::link::Accepted;
use crate::options::Options;
use crate::receive::{GroBatch, RecvBatch};
use crate::slot::{Forwarded, Slot, live_slots};
use crate::stat;
use crate::sync::lock;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use urxe_proto::time::Time;

/// The network state of a process: its slot, its capture, its counters. A process has one. A forked
/// child must not use its parent's; see [`Shared::is_ours`].
pub struct Shared {
    pid: u32,
    options: Options,
    slot: Slot,
    forwarder: Forwarder,
    /// Connections on which another process has queried the counters, without an answer yet.
    queries: Mutex<Vec<Arc<Accepted>>>,
    counters: Arc<NetCounters>,
    capture: CaptureHook,
    /// The stages of forwarded datagrams. Injected faults do not apply to them.
    inbound: Inbound,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("pid", &self.pid)
            .field("slot", &self.slot())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Takes a slot, and opens the capture file if one is configured.
    ///
    /// # Errors
    /// When either fails; the message says how to resolve it.
    pub fn new(options: Options) -> Result<Arc<Shared>, OpenError> {
        let counters = Arc::new(NetCounters::default());
        let capture = options.capture.as_deref().map(open_capture).transpose()?;
        let capture = CaptureHook::new(capture, counters.clone());
        if let Some(faults) = &options.faults {
            tracing::warn!("URXE_FAULTS is set, so packets are lost or changed: {faults}");
        }
        Ok(Arc::new(Shared {
            pid: std::process::id(),
            options,
            slot: Slot::claim()?,
            forwarder: Forwarder::default(),
            queries: Mutex::default(),
            inbound: Inbound::new(counters.clone(), capture.clone()),
            counters,
            capture,
        }))
    }

    /// Whether this process created it, and not its parent before a fork.
    pub fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    /// The slot, below [`SLOTS`](crate::SLOTS).
    pub fn slot(&self) -> u8 {
        self.slot.number()
    }

    /// The QPNs that queue pairs of this process may have.
    pub fn qpns(&self) -> RangeInclusive<u32> {
        self.slot.qpns()
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The counters of all endpoints.
    pub fn counters(&self) -> &Arc<NetCounters> {
        &self.counters
    }

    /// The path of the capture file.
    pub fn capture_path(&self) -> Option<&Path> {
        self.capture.path()
    }

    /// The descriptor for connections and forwarded datagrams of other processes. When it is
    /// readable, call [`Shared::recv_forwarded`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.slot.links().fd()
    }

    /// Receives forwarded datagrams, and calls `f` with each one whose ICRC is correct. Its `dst`
    /// identifies the endpoint. Returns the number of messages; more may be queued when it is not
    /// 0.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn recv_forwarded(
        &self,
        batch: &mut RecvBatch,
        mut f: impl FnMut(&Datagram<'_>),
    ) -> io::Result<usize> {
        let links = self.slot.links();
        links.recv(batch, |link, message, bytes, state| {
            if stat::is_query(bytes) {
                let mut queries = lock(&self.queries);
                if queries.len() < stat::MAX_PENDING_QUERIES {
                    queries.push(Arc::clone(link));
                }
                return;
            }
            let batch = forward::parse(bytes).filter(|_| !message.truncated);
            let Some(batch) = batch else {
                self.counters.forward_rejected.add(1);
                return;
            };
            for mut datagram in batch.datagrams() {
                self.counters.forwarded_in.add(1);
                datagram.forwarded = true;
                self.inbound.deliver(state, &mut datagram, &mut f);
            }
            self.inbound.finish(state);
        })
    }

    /// Answers the processes that queried the counters. To be called after
    /// [`Shared::recv_forwarded`]. `answer` is called for the text only if there is a query.
    pub fn answer_queries(&self, answer: impl FnOnce() -> Vec<u8>) {
        let queries = std::mem::take(&mut *lock(&self.queries));
        if queries.is_empty() {
            return;
        }
        let answer = answer();
        for link in queries {
            if let Err(error) = link.send(&answer) {
                tracing::debug!(%error, "cannot answer a query for the counters");
            }
        }
    }

    /// Forwards a datagram to the process in slot `to`. Returns false when there is none.
    pub fn forward(&self, to: u8, datagram: &Datagram<'_>) -> bool {
        let batch = GroBatch {
            src: datagram.src,
            dst: datagram.dst,
            tos: datagram.tos,
            ttl: datagram.ttl,
            first_index: datagram.index,
            segment: 0,
            bytes: datagram.bytes,
        };
        self.forward_batch(to, &batch) != Forwarded::NoProcess
    }

    /// Returns the slots of all other processes of this host, including those that share no address
    /// with this one.
    ///
    /// # Errors
    /// When no socket for the look-up can be opened.
    pub fn same_host_peers(&self) -> io::Result<Vec<u8>> {
        let mut live = live_slots()?;
        live.retain(|slot| *slot != self.slot());
        Ok(live)
    }

    /// Forwards datagrams to the process in slot `to`.
    pub(super) fn forward_batch(&self, to: u8, batch: &GroBatch<'_>) -> Forwarded {
        self.forwarder
            .forward(&self.slot, &self.counters, to, batch, clock::now())
    }

    /// Forwards the datagrams in the backlog, and resumes accepting connections.
    pub(super) fn retry(&self) {
        let now = clock::now();
        self.slot.links().retry();
        self.forwarder.retry(&self.slot, &self.counters, now);
    }

    /// The time of the next work for other processes, such as to send a packet again that found a
    /// full queue. [`Endpoint::service`](crate::Endpoint::service) does it.
    pub fn next_deadline(&self) -> Time {
        (self.forwarder.next_deadline()).min(self.slot.links().next_deadline())
    }

    pub(super) fn capture(&self) -> &CaptureHook {
        &self.capture
    }

    pub(super) fn inbound(&self) -> &Inbound {
        &self.inbound
    }
}

/// Starts a capture; see [`crate::pcap::PcapFile::open`].
#[cfg(feature = "capture")]
fn open_capture(name: &str) -> Result<Arc<dyn Capture>, CaptureError> {
    Ok(Arc::new(crate::pcap::PcapFile::open(name)?))
}

#[cfg(not(feature = "capture"))]
fn open_capture(_: &str) -> Result<Arc<dyn Capture>, CaptureError> {
    Err(CaptureError::NotBuilt)
}
