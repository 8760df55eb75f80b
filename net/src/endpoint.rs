//! One local address with its sockets.

use crate::clock;
use crate::error::OpenError;
use crate::group::Group;
use crate::path::{Path, PathOptions};
use crate::process_socket::ProcessSocket;
use crate::receive::{Arrival, Datagram, Kept, RecvBatch, Senders};
use crate::sharing::Shared;
use crate::slot::{Passed, SLOTS};
use crate::socket::{LocalAddress, ROCE_PORT, TxSocket, open_receiver};
use crate::steering::{PROBE_SLOT, SWEEP_TIME, Steering};
use crate::sys::set_option;
use crate::wire::Wire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_recv_buffer_size;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use urxe_proto::cm::wire::{Addressee, Message};
use urxe_proto::icrc::{self, Flow, FlowIcrc};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;
use urxe_proto::wire::{Packet, bth};

/// The longest sleep of one `poll` call in [`Endpoint::look`].
const MILLISECOND: Duration = Duration::from_millis(1);
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: MILLISECOND.as_nanos() as _,
};

/// The option that binds a socket to an interface (Linux 5.0, `asm-generic/socket.h`), with an
/// index that no interface has. For either index the kernel takes the socket out of its
/// `SO_REUSEPORT` group (`udp_lib_rehash`) and keeps the datagrams in the receive queue.
const SO_BINDTOIFINDEX: libc::c_int = 62;
const NO_INTERFACE: libc::c_int = libc::c_int::MAX;

/// The limit of the time for which a process that leaves the group drains its socket.
const LINGER: Duration = Duration::from_millis(100);

/// The maximum number of datagrams kept while the port is being opened. Opening takes at most
/// [`SWEEP_TIME`], and only peers of an earlier listener can send to this process by then.
const MOST_EARLY: usize = 64;

/// The maximum number of UDP source ports of an address.
const TX_SOCKETS: usize = 16;

/// An address of this host with port 4791 open. Dropping it closes the port.
///
/// All methods may be called from several threads at once. Except for opening and
/// [`Endpoint::leave`], none blocks for longer than a millisecond.
pub struct Endpoint {
    shared: Arc<Shared>,
    address: LocalAddress,
    receiver: ProcessSocket,
    /// The size of the kernel's receive buffer, in bytes.
    receive_buffer: u32,
    steering: Steering,
    wire: Arc<Wire>,
    senders: Mutex<[Option<Arc<TxSocket>>; TX_SOCKETS]>,
    /// Datagrams that arrived while the port was being opened.
    early: Mutex<Vec<Kept>>,
}

impl Endpoint {
    pub(super) fn open(shared: Arc<Shared>, address: LocalAddress) -> Result<Self, OpenError> {
        let receiver = open_receiver(address, shared.options().gro)?;
        if let Some(bytes) = shared.options().socket_buffer {
            let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
            set_option(receiver.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
                .map_err(|e| OpenError::system("setting the size of a socket's buffer", e))?;
        }
        let wire = Arc::new(Wire::new(shared.tap().clone(), shared.options().faults));
        let counters = shared.counters().clone();
        let steering = Steering::join(
            address,
            shared.slot(),
            receiver.as_fd(),
            counters,
            clock::now(),
        )?;
        let endpoint = Endpoint {
            shared,
            address,
            receive_buffer: socket_recv_buffer_size(&*receiver).map_or(0, |bytes| bytes as u32),
            receiver,
            steering,
            wire,
            senders: Mutex::default(),
            early: Mutex::default(),
        };
        endpoint.find_place(|datagram| {
            let mut early = endpoint.early();
            if early.len() < MOST_EARLY {
                early.push(Kept::from(datagram));
            }
        });
        Ok(endpoint)
    }

    /// Waits, for at most [`SWEEP_TIME`], until this process and the same-host peers have learnt
    /// each other's socket numbers. Until then datagrams may be forwarded through another process
    /// and be reordered, and an unreliable connection loses each message whose packets are
    /// reordered.
    fn find_place(&self, mut f: impl FnMut(&Datagram<'_>)) {
        let until = clock::now() + SWEEP_TIME;
        let mut batch = RecvBatch::new();
        while self.steering.next_deadline() != Time::NEVER && clock::now() < until {
            self.look();
            while matches!(self.recv(&mut batch, &mut f), Ok(1..)) {}
            let _ = self.learn(clock::now());
        }
    }

    /// Waits at most 1 ms for a datagram. An error is ignored: the next receive reports it.
    fn look(&self) {
        let mut fds = [
            PollFd::from_borrowed_fd(self.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.service_fd(), PollFlags::IN),
        ];
        let _ = poll(&mut fds, Some(&LOOK));
    }

    fn early(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The local address.
    pub fn address(&self) -> LocalAddress {
        self.address
    }

    /// The size of the kernel's receive buffer, in bytes.
    pub fn receive_buffer(&self) -> u32 {
        self.receive_buffer
    }

    /// The receiving socket. When it is readable, call [`Endpoint::recv`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    /// The socket for the steering messages between processes that share the port; traffic is rare.
    /// When it is readable, call [`Endpoint::service`].
    pub fn service_fd(&self) -> BorrowedFd<'_> {
        self.steering.fd()
    }

    /// The latest time for the next call of [`Endpoint::service`]; usually [`Time::NEVER`].
    pub fn next_deadline(&self) -> Time {
        if !self.early().is_empty() {
            return Time(0);
        }
        self.steering
            .next_deadline()
            .min(self.wire.next_deadline())
            .min(self.shared.next_deadline())
    }

    /// Returns a path from this address to `peer`.
    ///
    /// # Errors
    /// When the address families differ, or no socket can be opened.
    pub fn path(&self, peer: IpAddr, options: PathOptions) -> Result<Path, OpenError> {
        let peer = self.address.peer(peer, ROCE_PORT);
        let socket = self.sender(options.flow_key)?;
        let src = self.address.with_port(socket.port());
        let same = src.is_ipv4() == peer.is_ipv4();
        let flow = Flow::new(src, peer).filter(|_| same);
        let Some(flow) = flow else {
            return Err(OpenError::OtherFamily {
                address: self.address,
                peer: peer.ip(),
            });
        };
        if peer.ip().is_multicast() {
            socket.multicast_by(options.interface)?;
        }
        let wire = self.wire.clone();
        Ok(Path::new(
            socket,
            wire,
            (peer, FlowIcrc::new(&flow)),
            options,
        ))
    }

    /// Joins a multicast group on an interface.
    ///
    /// # Errors
    /// When the kernel refuses to open the socket or to join.
    pub fn join(&self, group: IpAddr, interface: u32) -> Result<Group, OpenError> {
        let group = LocalAddress::group(group, interface);
        Group::join(self.shared.clone(), self.wire.clone(), group)
    }

    /// Returns the sending socket of a flow; opens it for the first flow that needs it.
    fn sender(&self, flow_key: u32) -> Result<Arc<TxSocket>, OpenError> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        // Fibonacci hashing: the top bits of the product are the best mixed.
        let mixed = flow_key.wrapping_mul(0x9e37_79b9);
        let slot = (mixed >> (32 - TX_SOCKETS.trailing_zeros())) as usize;
        if let Some(socket) = &senders[slot] {
            return Ok(socket.clone());
        }
        // A random seed makes different processes start at different ports.
        let seed = crate::random::any();
        let socket = TxSocket::open(self.address, seed, self.shared.options().gso)?;
        let socket = Arc::new(socket);
        senders[slot] = Some(socket.clone());
        Ok(socket)
    }

    /// Receives once, and calls `f` with each datagram for this process whose ICRC is correct.
    /// Forwards datagrams for other processes. Returns the number of messages from the kernel: 0
    /// when there was none; otherwise more may be queued.
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
                self.take(arrival, senders, &mut f);
            })
    }

    /// Does the work that is due: steering messages, datagrams that wait to be forwarded, and
    /// packets that `URXE_FAULTS` delayed. Calls `f` with the received ones as [`Endpoint::recv`]
    /// does.
    ///
    /// # Errors
    /// When a socket fails.
    pub fn service(
        &self,
        batch: &mut RecvBatch,
        mut f: impl FnMut(&Datagram<'_>),
    ) -> io::Result<()> {
        let now = clock::now();
        let early = std::mem::take(&mut *self.early());
        early.iter().for_each(|kept| f(&kept.datagram()));
        self.learn(now)?;
        self.shared.retry();
        let mut arrivals = Vec::new();
        self.wire.release(now, &mut arrivals);
        if !arrivals.is_empty() {
            let (_, senders) = batch.parts();
            self.wire.deliver_all(senders, &arrivals, &mut f);
            self.shared.tap().conclude(senders);
        }
        Ok(())
    }

    /// Receives the answers of other processes about the socket order, and continues the sweep.
    fn learn(&self, now: Time) -> io::Result<()> {
        self.steering.take_answers(self.receiver.as_fd(), now)?;
        self.steering.on_time(now, self.receiver.as_fd());
        Ok(())
    }

    /// The time until which `URXE_FAULTS` delays packets; [`Time::NEVER`] when it delays none.
    pub fn held_until(&self) -> Time {
        self.wire.next_deadline()
    }

    /// Leaves the group of sockets before the process ends. Datagrams for this process are dropped,
    /// datagrams for other processes are forwarded.
    ///
    /// Closing the socket would drop the datagrams in its receive queue. So the socket first leaves
    /// the `SO_REUSEPORT` group: the kernel then queues nothing more on it, and the queue can be
    /// drained. The kernel renumbers the sockets of the other processes; they detect it by
    /// misdirected datagrams.
    pub fn leave(&self) {
        self.steering.stop();
        let receiver = self.receiver.as_fd();
        let has_left = set_option(receiver, libc::SOL_SOCKET, SO_BINDTOIFINDEX, NO_INTERFACE);
        if let Err(error) = has_left {
            tracing::debug!(%error, "what comes between the last look and the closing is lost");
        }
        self.read_to_the_end();
        // On failure, the end of the process closes it.
        let _ = self.receiver.retire();
    }

    /// Drains the socket until 1 ms passes without a datagram and no forwarded message waits for a
    /// full queue, for at most [`LINGER`]. The kernel may still have been queueing one when the
    /// socket left.
    fn read_to_the_end(&self) {
        let until = clock::now() + LINGER;
        let mut batch = RecvBatch::new();
        while clock::now() < until {
            self.look();
            let has_come = matches!(self.recv(&mut batch, |_| {}), Ok(1..));
            self.shared.retry();
            if !has_come && self.shared.next_deadline() == Time::NEVER {
                break;
            }
        }
    }

    /// Sorts the datagrams of a batch by the process that they are for. A run for one other process
    /// is forwarded as one message.
    fn take(
        &self,
        arrival: &Arrival<'_>,
        senders: &mut Senders,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        let mut run: Option<Run> = None;
        let mut offset = 0;
        for mut datagram in arrival.datagrams() {
            let start = offset;
            offset += datagram.bytes.len();
            let owner = self.owner(datagram.bytes);
            if let Some(run) = run.take_if(|run| owner != Owner::Other(run.slot)) {
                self.forward(run.slot, &run.cut(arrival, start), senders, f);
            }
            match owner {
                Owner::Mine => self.wire.deliver(senders, &mut datagram, f),
                Owner::Other(slot) => {
                    run.get_or_insert(Run {
                        slot,
                        start,
                        first_index: datagram.index,
                    });
                }
                Owner::Probe => {
                    self.steering
                        .take_probe(&self.receiver, datagram.src, datagram.bytes);
                }
                Owner::Nobody => self.shared.counters().malformed.add(1),
            }
        }
        if let Some(run) = run {
            self.forward(run.slot, &run.cut(arrival, offset), senders, f);
        }
    }

    fn owner(&self, bytes: &[u8]) -> Owner {
        let Some(&[slot, high, low]) = bytes.get(5..8).and_then(|q| q.first_chunk::<3>()) else {
            return Owner::Nobody;
        };
        let qpn = Qpn::new(u32::from_be_bytes([0, slot, high, low]));
        let slot = match qpn {
            Qpn::GSI => match addressee(bytes) {
                Some(Addressee::CommId(id)) if slot_of(id) < SLOTS => slot_of(id),
                Some(Addressee::AnyProcess) => return Owner::Mine,
                _ => self.steering.lowest(),
            },
            _ => slot,
        };
        match slot {
            _ if qpn == Qpn::MULTICAST || slot == self.shared.slot() => Owner::Mine,
            PROBE_SLOT => Owner::Probe,
            other => Owner::Other(other),
        }
    }

    /// Forwards a run of datagrams to the process in another slot.
    fn forward(
        &self,
        to: u8,
        run: &Arrival<'_>,
        senders: &mut Senders,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        match self.shared.pass(to, run) {
            Passed::NobodyThere => {
                self.steering.gone(to, clock::now());
                self.take_over(run, senders, f);
            }
            // The kernel steers by the first datagram of a batch.
            Passed::On | Passed::Overrun if run.first_index == 0 => {
                self.steering.mistaken(clock::now());
            }
            Passed::On | Passed::Overrun => {}
        }
    }

    /// Handles datagrams for a process that has ended. Those for QP 1 pass to the next slot; a
    /// message that names a communication ID of the ended process is answered here. The others are
    /// dropped.
    fn take_over(
        &self,
        run: &Arrival<'_>,
        senders: &mut Senders,
        f: &mut impl FnMut(&Datagram<'_>),
    ) {
        for mut datagram in run.datagrams() {
            match self.owner(datagram.bytes) {
                Owner::Mine => self.wire.deliver(senders, &mut datagram, f),
                Owner::Other(_) if names_an_id(datagram.bytes) => {
                    self.wire.deliver(senders, &mut datagram, f);
                }
                _ => self.shared.counters().no_such_slot.add(1),
            }
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("slot", &self.shared.slot())
            .finish_non_exhaustive()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.wire.clear();
    }
}

/// Consecutive datagrams of one batch for the same other process.
struct Run {
    slot: u8,
    /// The offset in the batch, in bytes.
    start: usize,
    first_index: u16,
}

impl Run {
    /// Returns the part of the batch from the start of the run to `end`.
    fn cut<'a>(&self, batch: &Arrival<'a>, end: usize) -> Arrival<'a> {
        Arrival {
            first_index: self.first_index,
            bytes: &batch.bytes[self.start..end],
            ..*batch
        }
    }
}

/// Returns the addressee of a message to QP 1; `None` when `bytes` hold no such message.
fn addressee(bytes: &[u8]) -> Option<Addressee> {
    let end = bytes.len().checked_sub(icrc::LEN)?;
    let packet = Packet::parse(&bytes[..end]).ok()?;
    let (_, message) = Message::parse(packet.payload).ok()?;
    Some(message.addressee())
}

/// Whether `bytes` are a message to QP 1 that names a communication ID as its addressee.
fn names_an_id(bytes: &[u8]) -> bool {
    bth::dest_qp(bytes) == Some(Qpn::GSI) && matches!(addressee(bytes), Some(Addressee::CommId(_)))
}

/// Returns the slot of the process that allocated a communication ID.
fn slot_of(comm_id: u32) -> u8 {
    comm_id.to_be_bytes()[0]
}

/// The process that a datagram is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Mine,
    Other(u8),
    Probe,
    /// The datagram is too short to have a destination QPN.
    Nobody,
}
