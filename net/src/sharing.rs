//! Sharing UDP port 4791 among the processes of a host.
//!
//! - Each process holds a *slot*, which is the top 8 bits of its QPNs.
//! - Each binds the port with `SO_REUSEPORT`. A *steering* program in the kernel gives every
//!   datagram to the socket of its slot: the fast path.
//! - The kernel renumbers the sockets when processes end, so a datagram may reach the wrong
//!   process. That process *forwards* it to the right one, and starts to learn the new order: see
//!   `steering`.
//!
//! So a wrong steering program only costs the forwarding. There is no shared file: the kernel
//! assigns and releases the names of the slots, and processes probe for the order of the sockets.
//! Processes of different users share the slots of a network namespace but not an address: the
//! kernel lets only one user bind it.

use crate::clock;
use crate::counters::NetCounters;
use crate::endpoint::Endpoint;
use crate::error::OpenError;
use crate::faults::FaultSpec;
use crate::forward::{self, Forwarder};
use crate::link::Accepted;
use crate::pcap::Capture;
use crate::receive::{Arrival, Datagram, RecvBatch, Senders};
use crate::slot::{Passed, Slot, live_slots};
use crate::socket::LocalAddress;
use crate::stat;
use crate::sys::has_more_rights_than_its_user;
use crate::wire::Tap;
use std::env;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use urxe_proto::rc::congestion::Algorithm;
use urxe_proto::time::Time;

/// The network options of a process.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Whether to send GSO batches.
    pub gso: bool,
    /// Whether to receive GRO batches.
    pub gro: bool,
    /// The capture file; `%p` in it stands for the process ID.
    pub capture: Option<String>,
    /// The faults to inject.
    pub faults: Option<FaultSpec>,
    /// The size of the kernel's receive buffer in bytes, as far as the kernel permits it. `None`
    /// requests a large one, where permitted beyond `net.core.rmem_max`.
    pub socket_buffer: Option<u32>,
    /// The time for which the peer of a connection may be silent before it counts as gone, for
    /// connections made by the connection manager. `None` disables the check.
    pub patience: Option<Duration>,
    /// The congestion control algorithm of connections.
    pub congestion: Algorithm,
}

/// The default of [`Options::patience`].
const PATIENCE: Duration = Duration::from_secs(60);

impl Default for Options {
    fn default() -> Self {
        Options {
            gso: true,
            gro: true,
            capture: None,
            faults: None,
            socket_buffer: None,
            patience: Some(PATIENCE),
            congestion: Algorithm::default(),
        }
    }
}

impl Options {
    /// Reads `URXE_PCAP`, `URXE_FAULTS`, `URXE_SOCKET_BUFFER`, `URXE_KEEPALIVE` and
    /// `URXE_CONGESTION` from the environment. A program with more rights than its user
    /// (set-user-ID, capabilities) ignores them: otherwise its user could make it overwrite any
    /// file with a capture.
    ///
    /// # Errors
    /// When one of the last four cannot be parsed; the message names the variable and the fault.
    pub fn from_env() -> Result<Options, OpenError> {
        let elevated = has_more_rights_than_its_user();
        let text = |name| {
            let value = env::var_os(name)?;
            if elevated {
                tracing::warn!("{name} is ignored: this program has more rights than its user");
                return None;
            }
            Some(value.to_string_lossy().into_owned())
        };
        let faults = match text("URXE_FAULTS").filter(|text| !text.is_empty()) {
            Some(text) => Some(text.parse::<FaultSpec>()?),
            None => None,
        };
        let socket_buffer = match text("URXE_SOCKET_BUFFER").filter(|text| !text.is_empty()) {
            Some(text) => Some(text.parse().map_err(|_| OpenError::SocketBuffer(text))?),
            None => None,
        };
        let patience = match text("URXE_KEEPALIVE").filter(|text| !text.is_empty()) {
            Some(text) => parse_patience(&text)?,
            None => Some(PATIENCE),
        };
        let congestion = match text("URXE_CONGESTION").filter(|text| !text.is_empty()) {
            Some(text) => text.parse()?,
            None => Algorithm::default(),
        };
        Ok(Options {
            congestion,
            patience,
            capture: text("URXE_PCAP").filter(|text| !text.is_empty()),
            faults,
            socket_buffer,
            ..Options::default()
        })
    }
}

/// Parses the seconds in `URXE_KEEPALIVE`; 0 means no limit.
fn parse_patience(text: &str) -> Result<Option<Duration>, OpenError> {
    match text.trim().parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(Duration::from_secs(seconds.into()))),
        Err(_) => Err(OpenError::Keepalive(text.to_owned())),
    }
}

/// The network state of a process: its slot, its capture, its counters. A process has one. A forked
/// child must not use its parent's; see [`Shared::is_ours`].
pub struct Shared {
    pid: u32,
    options: Options,
    slot: Slot,
    forwarder: Forwarder,
    /// Processes that asked for the counters and have no answer yet.
    questions: Mutex<Vec<Arc<Accepted>>>,
    tap: Arc<Tap>,
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
        let capture = options.capture.as_deref().map(Capture::open).transpose()?;
        if let Some(faults) = &options.faults {
            tracing::warn!("URXE_FAULTS is set, and packets suffer: {faults}");
        }
        Ok(Arc::new(Shared {
            pid: std::process::id(),
            options,
            slot: Slot::claim()?,
            forwarder: Forwarder::default(),
            questions: Mutex::default(),
            tap: Arc::new(Tap {
                counters: Arc::new(NetCounters::default()),
                bad: Mutex::default(),
                capture,
            }),
        }))
    }

    /// Whether this process created it, and not its parent before a fork.
    pub fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    /// The slot, below [`super::SLOTS`].
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
        &self.tap.counters
    }

    /// The path of the capture file.
    pub fn capture_path(&self) -> Option<&std::path::Path> {
        self.tap.capture.as_ref().map(Capture::path)
    }

    /// Binds port 4791 of one address of this host.
    ///
    /// # Errors
    /// When that fails; the message names the holder of the port, as far as it is visible, and the
    /// remedy.
    pub fn open(self: &Arc<Self>, address: LocalAddress) -> Result<Endpoint, OpenError> {
        Endpoint::open(self.clone(), address)
    }

    /// The descriptor for connections and forwarded datagrams of other processes. When it is
    /// readable, call [`Shared::recv_forwarded`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.slot.links().fd()
    }

    /// Receives once from a socket bound to `dst`, and calls `f` with the datagrams of each
    /// message. Returns the number of messages.
    ///
    /// # Errors
    /// When the socket fails.
    pub(super) fn recv(
        &self,
        socket: BorrowedFd<'_>,
        dst: LocalAddress,
        batch: &mut RecvBatch,
        mut f: impl FnMut(&Arrival<'_>, &mut Senders),
    ) -> io::Result<usize> {
        let counters = self.counters();
        counters.receive_calls.add(1);
        let count = batch.fill(socket)?;
        if count == 0 {
            return Ok(0);
        }
        counters.messages_in.add(count as u64);
        let (messages, senders) = batch.parts();
        for (message, bytes) in messages {
            let Some(src) = message.src.filter(|_| !message.truncated) else {
                counters.malformed.add(1);
                continue;
            };
            let arrival = Arrival {
                src,
                dst,
                tos: message.tos,
                ttl: message.ttl,
                first_index: 0,
                segment: message.segment,
                bytes,
            };
            f(&arrival, senders);
            self.tap().conclude(senders);
        }
        Ok(count)
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
        self.slot
            .links()
            .recv(batch, |link, message, bytes, senders| {
                if stat::is_question(bytes) {
                    let mut questions = self.questions();
                    if questions.len() < stat::MAX_WAITING {
                        questions.push(Arc::clone(link));
                    }
                    return;
                }
                let arrival = forward::parse(bytes).filter(|_| !message.truncated);
                let Some(arrival) = arrival else {
                    self.tap.counters.forward_rejected.add(1);
                    return;
                };
                for datagram in arrival.datagrams() {
                    self.tap.counters.forwarded_in.add(1);
                    let mut datagram = Datagram {
                        passed_on: true,
                        ..datagram
                    };
                    self.tap.deliver(senders, &mut datagram, &mut f);
                }
                self.tap.conclude(senders);
            })
    }

    /// Answers the processes that asked for the counters. To be called after
    /// [`Shared::recv_forwarded`]. `answer` is called for the text only if there is a question.
    pub fn answer_questions(&self, answer: impl FnOnce() -> Vec<u8>) {
        let questions = std::mem::take(&mut *self.questions());
        if questions.is_empty() {
            return;
        }
        let answer = answer();
        for link in questions {
            if let Err(error) = link.send(&answer) {
                tracing::debug!(%error, "a question about the counters stays without an answer");
            }
        }
    }

    fn questions(&self) -> MutexGuard<'_, Vec<Arc<Accepted>>> {
        self.questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of datagrams to `address` that were dropped as invalid.
    pub fn bad_datagrams(&self, address: LocalAddress) -> u64 {
        self.tap.bad().get(&address).copied().unwrap_or(0)
    }

    /// Counts a datagram to `address` whose packet is invalid.
    pub fn count_bad(&self, address: LocalAddress) {
        self.tap.count_bad(address);
    }

    /// Forwards a datagram to the process in slot `to`. Returns false when there is none.
    pub fn hand_on(&self, to: u8, datagram: &Datagram<'_>) -> bool {
        let arrival = Arrival {
            src: datagram.src,
            dst: datagram.dst,
            tos: datagram.tos,
            ttl: datagram.ttl,
            first_index: datagram.index,
            segment: 0,
            bytes: datagram.bytes,
        };
        !matches!(self.pass(to, &arrival), Passed::NobodyThere)
    }

    /// Returns the slots of all other processes, including those that share no address with this
    /// one.
    ///
    /// # Errors
    /// When no socket for the look-up can be opened.
    pub fn neighbours(&self) -> io::Result<Vec<u8>> {
        let mut live = live_slots()?;
        live.retain(|slot| *slot != self.slot());
        Ok(live)
    }

    /// Forwards datagrams to the process in slot `to`.
    pub(super) fn pass(&self, to: u8, arrival: &Arrival<'_>) -> Passed {
        self.forwarder
            .pass(&self.slot, self.counters(), to, arrival, clock::now())
    }

    /// Forwards the datagrams that had to wait, and resumes accepting connections.
    pub(super) fn retry(&self) {
        let now = clock::now();
        self.slot.links().retry();
        self.forwarder.retry(&self.slot, self.counters(), now);
    }

    /// The time of the next call of [`Shared::retry`].
    pub(super) fn next_deadline(&self) -> Time {
        (self.forwarder.next_deadline()).min(self.slot.links().next_deadline())
    }

    pub(super) fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_seconds_and_0_is_for_ever() {
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(parse_patience("90").unwrap(), seconds(90));
        assert_eq!(parse_patience(" 1 ").unwrap(), seconds(1));
        assert_eq!(parse_patience("0").unwrap(), None);
        for wrong in ["-1", "1s", "0.5", "for ever", "99999999999"] {
            let error = parse_patience(wrong).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }
}
