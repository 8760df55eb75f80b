//! One local address with its sockets: one or more that receive, and those that send.

use crate::address::{LocalAddress, ROCE_PORT};
use crate::clock;
use crate::datagram::{Datagram, OwnedDatagram};
use crate::error::OpenError;
use crate::faults::FaultSpec;
use crate::group::Group;
use crate::icrc;
use crate::inbound::{Inbound, Received};
use crate::path::{EndpointFaults, Outbound, Path, PathOptions};
use crate::process_socket::ProcessSocket;
use crate::qpn::{FIRST_QPN, MAX_RECEIVE_SOCKETS, PROBE_SLOT, QPN_BITS, SLOTS, receive_socket_of};
use crate::receive::{GroBatch, RecvBatch};
use crate::receivers::Receivers;
use crate::sharing::Shared;
use crate::slot::Forwarded;
use crate::socket::{TxSocket, open_receiver};
use crate::steering::{SWEEP_TIMEOUT, Steering};
use crate::sync::lock;
use crate::sys::set_option;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_recv_buffer_size;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use urxe_proto::cm::wire::{Addressee, Message};
use urxe_proto::icrc::{Flow, FlowIcrc};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;
use urxe_proto::wire::{Packet, bth};

/// The timeout of one `poll` call in [`Endpoint::wait_readable`].
const POLL_TIMEOUT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: Duration::from_millis(1).as_nanos() as _,
};

/// The option that binds a socket to an interface (Linux 5.0, `asm-generic/socket.h`), with an
/// index that no interface has. For either index the kernel takes the socket out of its
/// `SO_REUSEPORT` group (`udp_lib_rehash`) and keeps the datagrams in the receive queue.
const SO_BINDTOIFINDEX: libc::c_int = 62;
const NO_INTERFACE: libc::c_int = libc::c_int::MAX;

/// The limit of the time for which a process that leaves the group drains its socket.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// The maximum number of datagrams kept while the port is being opened. Opening takes at most
/// [`SWEEP_TIMEOUT`], and only peers of an earlier listener can send to this process by then.
const MAX_QUEUED_AT_JOIN: usize = 64;

/// The maximum number of UDP source ports of an address.
const TX_SOCKETS: usize = 16;

/// An address of this host with port 4791 open. Dropping it closes the port.
///
/// All methods may be called from several threads at once. Except for opening and
/// [`Endpoint::leave`], none blocks for longer than a millisecond.
pub struct Endpoint {
    shared: Arc<Shared>,
    address: LocalAddress,
    receivers: Receivers,
    /// The size of the kernel's receive buffer of the first receive socket, in bytes.
    receive_buffer: u32,
    steering: Steering,
    inbound: Inbound,
    outbound: Outbound,
    outbound_faults: EndpointFaults,
    senders: Mutex<[Option<Arc<TxSocket>>; TX_SOCKETS]>,
    /// Datagrams that arrived while the port was being opened.
    early: Mutex<Vec<OwnedDatagram>>,
}

impl Shared {
    /// Binds port 4791 of one address of this host.
    ///
    /// # Errors
    /// When that fails; the message names the owner of the port, as far as it is visible, and the
    /// remedy.
    pub fn open(self: &Arc<Self>, address: LocalAddress) -> Result<Endpoint, OpenError> {
        Endpoint::open(self.clone(), address)
    }
}

impl Endpoint {
    fn open(shared: Arc<Shared>, address: LocalAddress) -> Result<Self, OpenError> {
        let receiver = receiver_for(&shared, address)?;
        let counters = shared.counters();
        let faults = shared.options().faults;
        let steering = Steering::join(
            address,
            shared.slot(),
            receiver.as_fd(),
            counters.clone(),
            clock::now(),
        )?;
        let endpoint = Endpoint {
            address,
            receive_buffer: socket_recv_buffer_size(&*receiver).map_or(0, |bytes| bytes as u32),
            receivers: Receivers::new(receiver),
            steering,
            inbound: shared.inbound().with_faults(faults),
            outbound: Outbound {
                counters: counters.clone(),
                capture: shared.capture().clone(),
            },
            outbound_faults: EndpointFaults::new(faults, counters),
            senders: Mutex::default(),
            early: Mutex::default(),
            shared,
        };
        endpoint.learn_indices(|datagram| {
            let mut early = lock(&endpoint.early);
            if early.len() < MAX_QUEUED_AT_JOIN {
                early.push(datagram.into());
            }
        });
        Ok(endpoint)
    }

    /// Waits, for at most [`SWEEP_TIMEOUT`], until this process and the same-host peers have learnt
    /// each other's socket indices. Until then datagrams may be forwarded through another process
    /// and be reordered, and an unreliable connection loses each message whose packets are
    /// reordered.
    fn learn_indices(&self, mut f: impl FnMut(&Datagram<'_>)) {
        let until = clock::now() + SWEEP_TIMEOUT;
        let mut batch = RecvBatch::new();
        while self.steering.next_deadline() != Time::NEVER && clock::now() < until {
            self.wait_readable();
            while self.recv_all(&mut batch, &mut f) {}
            let _ = self.service_steering(clock::now());
        }
    }

    /// Waits at most 1 ms for a datagram. An error is ignored: the next receive reports it.
    fn wait_readable(&self) {
        let receivers = self.receivers.iter().map(|receiver| receiver.as_fd());
        let mut fds: Vec<_> = receivers
            .chain([self.service_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let _ = poll(&mut fds, Some(&POLL_TIMEOUT));
    }

    /// The local address.
    pub fn address(&self) -> LocalAddress {
        self.address
    }

    /// The size of the kernel's receive buffer of a receive socket, in bytes.
    pub fn receive_buffer(&self) -> u32 {
        self.receive_buffer
    }

    /// The receive socket with number 0. When it is readable, call [`Endpoint::recv`].
    #[inline]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.receivers.first().as_fd()
    }

    /// The receive socket with a number, if it is open. When it is readable, call
    /// [`Endpoint::fill`] with that number.
    #[inline]
    pub fn fd_of(&self, number: usize) -> Option<BorrowedFd<'_>> {
        Some(self.receivers.get(number)?.as_fd())
    }

    /// The number of open receive sockets, at least 1. They are numbered from 0.
    #[inline]
    pub fn receive_sockets(&self) -> usize {
        self.steering.own_sockets()
    }

    /// The number of receive sockets among which the steering program that this process attached
    /// last distributes its queue pairs: a power of two, at first 1. See [`receive_socket_of`].
    #[inline]
    pub fn steered_sockets(&self) -> usize {
        self.steering.steered_sockets()
    }

    /// Opens receive sockets until there are `count`, a power of two and at most
    /// [`MAX_RECEIVE_SOCKETS`], and starts a sweep, after which the steering program distributes to
    /// them. Other threads may receive meanwhile.
    ///
    /// From now on the caller must read all sockets: a datagram may arrive at any of them, and the
    /// sweep learns a socket when its probe is read. The call may move
    /// [`Endpoint::next_deadline`]. It opens none after [`Endpoint::leave`], or if the kernel has
    /// refused the steering program: a connection's packets would then arrive at any of them.
    ///
    /// # Errors
    /// When a socket cannot be opened. Those that were opened stay open, and the steering program
    /// distributes to the largest power of two of them.
    ///
    /// # Panics
    /// When `count` is not a power of two, or larger than the maximum.
    pub fn add_receive_sockets(&self, count: usize) -> Result<(), OpenError> {
        assert!(count.is_power_of_two() && count <= MAX_RECEIVE_SOCKETS);
        if self.steering.is_disabled() {
            return Ok(());
        }
        let open = || receiver_for(&self.shared, self.address);
        let (open, result) = self.receivers.add(count, open);
        self.steering.set_own_sockets(open, clock::now());
        result
    }

    /// The socket for the steering messages between processes that share the port; traffic is rare.
    /// When it is readable, call [`Endpoint::service`].
    pub fn service_fd(&self) -> BorrowedFd<'_> {
        self.steering.fd()
    }

    /// The latest time for the next call of [`Endpoint::service`]; usually [`Time::NEVER`].
    pub fn next_deadline(&self) -> Time {
        if !lock(&self.early).is_empty() {
            return Time(0);
        }
        self.steering
            .next_deadline()
            .min(self.delayed_until())
            .min(self.shared.next_deadline())
    }

    /// Returns a path from this address to `peer`.
    ///
    /// # Errors
    /// When the address families differ, or no socket can be opened.
    pub fn path(&self, peer: IpAddr, options: PathOptions) -> Result<Path, OpenError> {
        self.path_with_faults(peer, options, None)
    }

    /// Returns a path like [`Endpoint::path`], whose packets get faults of their own instead of
    /// those of `URXE_FAULTS`. The direction in `faults` must include sent packets.
    ///
    /// # Errors
    /// As for [`Endpoint::path`].
    pub fn path_with_faults(
        &self,
        peer: IpAddr,
        options: PathOptions,
        faults: Option<FaultSpec>,
    ) -> Result<Path, OpenError> {
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
        let faults = self
            .outbound_faults
            .of_path(faults, &self.outbound.counters);
        Ok(Path::new(
            socket,
            (self.outbound.clone(), faults),
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
        Group::join(group, self.shared.options().gro, self.inbound.clone())
    }

    /// Returns the sending socket of a flow; opens it for the first flow that needs it.
    fn sender(&self, flow_key: u32) -> Result<Arc<TxSocket>, OpenError> {
        let mut senders = lock(&self.senders);
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

    /// Receives once from the socket with number 0, and calls `f` with each datagram for this
    /// process whose ICRC is correct. Forwards datagrams for other processes. Returns the number of
    /// messages from the kernel: 0 when there was none; otherwise more may be queued.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn recv(&self, batch: &mut RecvBatch, f: impl FnMut(&Datagram<'_>)) -> io::Result<usize> {
        let count = self.fill(0, batch)?;
        if count > 0 {
            self.deliver(0, batch, f);
        }
        Ok(count)
    }

    /// Receives once from each receive socket, as [`Endpoint::recv`] does. Returns whether there
    /// were any messages.
    fn recv_all(&self, batch: &mut RecvBatch, f: &mut dyn FnMut(&Datagram<'_>)) -> bool {
        let mut any = false;
        for number in 0..MAX_RECEIVE_SOCKETS {
            if let Ok(1..) = self.fill(number, batch) {
                self.deliver(number, batch, &mut *f);
                any = true;
            }
        }
        any
    }

    /// The first half of [`Endpoint::recv`], for the receive socket with a number: receives once.
    /// Unless it returns 0, the caller must pass the batch to [`Endpoint::deliver`] with the same
    /// number. A number without a socket receives nothing. When the process begins to distribute
    /// queue pairs to more sockets, the others receive nothing until socket 0 is empty, so that the
    /// packets of a queue pair stay in order.
    ///
    /// # Errors
    /// When the socket fails.
    #[inline]
    pub fn fill(&self, number: usize, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.set_moved_deadline(false);
        let token = self.steering.drain_token();
        match self.receivers.get(number) {
            Some(receiver) if !self.steering.must_drain(number) => {
                let received = self.inbound.receive(batch, receiver.as_fd());
                if number == 0 && matches!(received, Ok(0)) {
                    self.steering.drained(token);
                }
                received
            }
            _ => Ok(0),
        }
    }

    /// The second half of [`Endpoint::recv`]: delivers or forwards what [`Endpoint::fill`] has
    /// received. A datagram of this process is delivered whichever of its sockets it has reached;
    /// at another one than the steering program should select, it starts a sweep.
    #[inline]
    pub fn deliver(&self, number: usize, batch: &mut RecvBatch, mut f: impl FnMut(&Datagram<'_>)) {
        let mut deadline_moved = self.inbound.delays();
        {
            let mut received = self.inbound.received(batch, self.address);
            while let Some(arrival) = received.next_arrival() {
                // The kernel steers by the first datagram of a batch.
                if self.steered_sockets() > 1 {
                    deadline_moved |= self.check_socket(number, arrival.bytes);
                }
                // Small messages arrive alone, and usually at the process that they are for.
                if arrival.is_single() && self.owner(arrival.bytes) == Owner::ThisProcess {
                    received.deliver(&mut arrival.datagram(), &mut f);
                    continue;
                }
                deadline_moved |= self.split(number, &arrival.batch(), &mut received, &mut f);
            }
        }
        batch.set_moved_deadline(deadline_moved);
    }

    /// Starts a sweep if a datagram for a queue pair of this process has arrived at the receive
    /// socket `number`, and its last steering program selects another one. Returns whether it has.
    #[inline(never)]
    fn check_socket(&self, number: usize, bytes: &[u8]) -> bool {
        let is_wrong = bth::dest_qp(bytes).is_some_and(|qpn| {
            qpn.get() >> QPN_BITS == u32::from(self.shared.slot())
                && qpn.get() >= FIRST_QPN
                && receive_socket_of(qpn, self.steered_sockets()) != number
        });
        if is_wrong {
            self.steering.misdirected(clock::now());
        }
        is_wrong
    }

    /// Delivers and forwards the datagrams of a batch from the receive socket `number`. Returns
    /// whether there were any for other processes.
    #[inline(never)]
    fn split(
        &self,
        number: usize,
        batch: &GroBatch<'_>,
        received: &mut Received<'_>,
        f: &mut dyn FnMut(&Datagram<'_>),
    ) -> bool {
        let mut are_foreign = false;
        let mut run: Option<Run> = None;
        let mut offset = 0;
        for mut datagram in batch.datagrams() {
            let start = offset;
            offset += datagram.bytes.len();
            let owner = self.owner(datagram.bytes);
            are_foreign |= owner != Owner::ThisProcess;
            if let Some(run) = run.take_if(|run| owner != Owner::Other(run.slot)) {
                self.forward(run.slot, &run.cut(batch, start), received, f);
            }
            match owner {
                Owner::ThisProcess => received.deliver(&mut datagram, &mut *f),
                Owner::Other(slot) => {
                    run.get_or_insert(Run {
                        slot,
                        start,
                        first_index: datagram.index,
                    });
                }
                Owner::Probe => {
                    let receiver = self.receivers.first();
                    self.steering
                        .answer_probe(receiver, number, datagram.src, datagram.bytes);
                }
                Owner::Unknown => self.shared.counters().malformed.add(1),
            }
        }
        if let Some(run) = run {
            self.forward(run.slot, &run.cut(batch, offset), received, f);
        }
        are_foreign
    }

    /// Does the work that is due: steering messages, the backlog of datagrams to forward, and
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
        let early = std::mem::take(&mut *lock(&self.early));
        early.iter().for_each(|early| f(&early.datagram()));
        self.service_steering(now)?;
        self.shared.retry();
        if self.outbound_faults.any() {
            self.outbound_faults.release(now);
            self.outbound.capture.flush();
        }
        self.inbound.release(now, batch, &mut f);
        Ok(())
    }

    /// Receives the answers of other processes about the socket indices, and continues the sweep.
    fn service_steering(&self, now: Time) -> io::Result<()> {
        self.steering.receive_answers(self.fd(), now)?;
        self.steering.on_time(now, self.fd());
        Ok(())
    }

    /// Returns the time at which the next delayed packet must be released; [`Time::NEVER`] if
    /// injected faults delay none.
    #[inline]
    pub fn delayed_until(&self) -> Time {
        if !self.outbound_faults.any() && !self.inbound.delays() {
            return Time::NEVER;
        }
        self.delayed_by_faults()
    }

    /// Whether `URXE_FAULTS` emulates a path on which sent packets spend time. They are then not in
    /// a receive buffer while they are in flight.
    pub fn emulates_path(&self) -> bool {
        let faults = self.shared.options().faults;
        faults.is_some_and(|faults| faults.sends() && faults.delays())
    }

    #[cold]
    fn delayed_by_faults(&self) -> Time {
        let outbound = self.outbound_faults.next_deadline();
        outbound.min(self.inbound.next_deadline())
    }

    /// Leaves the group of sockets before the process ends. Datagrams for this process are dropped,
    /// datagrams for other processes are forwarded.
    ///
    /// Closing a receive socket would drop the datagrams in its queue. So all of them first leave
    /// the `SO_REUSEPORT` group: the kernel then queues nothing more on them, and the queues can be
    /// drained. The kernel renumbers the sockets of the other processes; they detect it by
    /// misdirected datagrams.
    pub fn leave(&self) {
        self.steering.stop();
        self.receivers.close();
        for receiver in self.receivers.iter().map(|receiver| receiver.as_fd()) {
            let has_left = set_option(receiver, libc::SOL_SOCKET, SO_BINDTOIFINDEX, NO_INTERFACE);
            if let Err(error) = has_left {
                tracing::debug!(%error, "datagrams that arrive while the port is closed are lost");
            }
        }
        self.drain();
        for receiver in self.receivers.iter() {
            // On failure, the end of the process closes it.
            let _ = receiver.retire();
        }
    }

    /// Drains the receive sockets until 1 ms passes without a datagram and the backlog of forwarded
    /// messages is empty, for at most [`DRAIN_TIMEOUT`]. When a socket leaves, the kernel may still
    /// be queueing a datagram.
    fn drain(&self) {
        let until = clock::now() + DRAIN_TIMEOUT;
        let mut batch = RecvBatch::new();
        while clock::now() < until {
            self.wait_readable();
            let has_received = self.recv_all(&mut batch, &mut |_| {});
            self.shared.retry();
            if !has_received && self.shared.next_deadline() == Time::NEVER {
                break;
            }
        }
    }

    /// Returns the process that a datagram is for.
    #[inline]
    fn owner(&self, bytes: &[u8]) -> Owner {
        let Some(&[slot, high, low]) = bytes.get(5..8).and_then(|q| q.first_chunk::<3>()) else {
            return Owner::Unknown;
        };
        let qpn = Qpn::new(u32::from_be_bytes([0, slot, high, low]));
        let slot = match qpn {
            Qpn::GSI => match addressee(bytes) {
                Some(Addressee::CommId(id)) if slot_of(id) < SLOTS => slot_of(id),
                Some(Addressee::AnyProcess) => return Owner::ThisProcess,
                _ => self.steering.lowest(),
            },
            _ => slot,
        };
        match slot {
            _ if qpn == Qpn::MULTICAST || slot == self.shared.slot() => Owner::ThisProcess,
            PROBE_SLOT => Owner::Probe,
            other => Owner::Other(other),
        }
    }

    /// Forwards a run of datagrams to the process in another slot.
    fn forward(
        &self,
        to: u8,
        run: &GroBatch<'_>,
        received: &mut Received<'_>,
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        match self.shared.forward_batch(to, run) {
            Forwarded::NoProcess => {
                self.steering.process_ended(to, clock::now());
                self.handle_orphans(run, received, f);
            }
            // The kernel steers by the first datagram of a batch.
            Forwarded::Sent | Forwarded::QueueFull if run.first_index == 0 => {
                self.steering.misdirected(clock::now());
            }
            Forwarded::Sent | Forwarded::QueueFull => {}
        }
    }

    /// Handles datagrams for a process that has ended. Those for QP 1 pass to the next slot; a
    /// message that names a communication ID of the ended process is answered here. The others are
    /// dropped.
    fn handle_orphans(
        &self,
        run: &GroBatch<'_>,
        received: &mut Received<'_>,
        f: &mut dyn FnMut(&Datagram<'_>),
    ) {
        for mut datagram in run.datagrams() {
            match self.owner(datagram.bytes) {
                Owner::ThisProcess => received.deliver(&mut datagram, &mut *f),
                Owner::Other(_) if names_an_id(datagram.bytes) => {
                    received.deliver(&mut datagram, &mut *f)
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

/// Opens a receive socket with the options of the process.
fn receiver_for(shared: &Shared, address: LocalAddress) -> Result<ProcessSocket, OpenError> {
    let receiver = open_receiver(address, shared.options().gro)?;
    if let Some(bytes) = shared.options().socket_buffer {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        set_option(receiver.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
            .map_err(|e| OpenError::system("setting the size of a socket's buffer", e))?;
    }
    Ok(receiver)
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
    fn cut<'a>(&self, batch: &GroBatch<'a>, end: usize) -> GroBatch<'a> {
        GroBatch {
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
    ThisProcess,
    Other(u8),
    Probe,
    /// The datagram is too short to have a destination QPN.
    Unknown,
}
