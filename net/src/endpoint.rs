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

/// How long who waits sleeps at a time.
const MILLISECOND: Duration = Duration::from_millis(1);
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: MILLISECOND.as_nanos() as _,
};

/// The option that binds a socket to an interface (Linux 5.0, `asm-generic/socket.h`), and a number that none has.
/// Whichever it is, the kernel takes the socket out of its group for it (`udp_lib_rehash`), and leaves alone what the
/// socket has received.
const SO_BINDTOIFINDEX: libc::c_int = 62;
const NO_INTERFACE: libc::c_int = libc::c_int::MAX;

/// How long who has left goes on reading what was on its way to it.
const LINGER: Duration = Duration::from_millis(100);

/// How many datagrams are kept that come while the port is being opened. It takes 20 ms at most, and nobody
/// can wait for anything here but who sends to a listener of before.
const MOST_EARLY: usize = 64;

/// How many UDP ports an address sends from at most.
const TX_SOCKETS: usize = 16;

/// An address of this host with port 4791 open. Dropping it closes the port.
///
/// All calls may be made from several threads at once, and none of them blocks for longer than a
/// millisecond, save the opening.
pub struct Endpoint {
    shared: Arc<Shared>,
    address: LocalAddress,
    receiver: ProcessSocket,
    /// Bytes of memory that the kernel keeps for what arrives.
    receive_buffer: u32,
    steering: Steering,
    wire: Arc<Wire>,
    senders: Mutex<[Option<Arc<TxSocket>>; TX_SOCKETS]>,
    /// What came while the port was being opened.
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

    /// Waits, not for long, until the neighbours and this process know each other's places. Without that,
    /// what comes would take detours, and an unreliable connection loses each message whose packets
    /// overtake each other.
    fn find_place(&self, mut f: impl FnMut(&Datagram<'_>)) {
        let until = clock::now() + SWEEP_TIME;
        let mut batch = RecvBatch::new();
        while self.steering.next_deadline() != Time::NEVER && clock::now() < until {
            self.look();
            while matches!(self.recv(&mut batch, &mut f), Ok(1..)) {}
            let _ = self.learn(clock::now());
        }
    }

    /// Waits for 1 ms at most that something comes. A failure is met again by whoever reads it.
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

    /// The address.
    pub fn address(&self) -> LocalAddress {
        self.address
    }

    /// How many bytes of memory what has arrived may take until it is read.
    pub fn receive_buffer(&self) -> u32 {
        self.receive_buffer
    }

    /// Packets arrive here: when it is readable, call [`Endpoint::recv`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    /// What the processes that share the port tell each other arrives here, rarely: when it is
    /// readable, call [`Endpoint::service`].
    pub fn service_fd(&self) -> BorrowedFd<'_> {
        self.steering.fd()
    }

    /// When [`Endpoint::service`] is to be called at the latest; [`Time::NEVER`] most of the time.
    pub fn next_deadline(&self) -> Time {
        if !self.early().is_empty() {
            return Time(0);
        }
        self.steering
            .next_deadline()
            .min(self.wire.next_deadline())
            .min(self.shared.next_deadline())
    }

    /// The way from here to `peer`.
    ///
    /// # Errors
    /// When the two differ in family, or no socket can be opened.
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
    /// When the kernel refuses.
    pub fn join(&self, group: IpAddr, interface: u32) -> Result<Group, OpenError> {
        let group = LocalAddress::group(group, interface);
        Group::join(self.shared.clone(), self.wire.clone(), group)
    }

    /// The socket for a flow; opened when the first flow needs it.
    fn sender(&self, flow_key: u32) -> Result<Arc<TxSocket>, OpenError> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        // Fibonacci hashing: the top bits of the product are the best mixed.
        let mixed = flow_key.wrapping_mul(0x9e37_79b9);
        let slot = (mixed >> (32 - TX_SOCKETS.trailing_zeros())) as usize;
        if let Some(socket) = &senders[slot] {
            return Ok(socket.clone());
        }
        // Different processes should start at different ports.
        let seed = crate::random::any();
        let socket = TxSocket::open(self.address, seed, self.shared.options().gso)?;
        let socket = Arc::new(socket);
        senders[slot] = Some(socket.clone());
        Ok(socket)
    }

    /// Receives once, and calls `f` with each datagram for this process whose ICRC is right.
    /// Datagrams for other processes go on to them. Returns how many messages the kernel passed up:
    /// 0 when there was nothing, and else there may be more.
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

    /// Does what is due: the processes' talk about the port, datagrams that wait to be passed on, and
    /// packets that `URXE_FAULTS` has delayed. Those that arrived go to `f` like those of [`Endpoint::recv`].
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

    /// Hears the others about the order of sockets.
    fn learn(&self, now: Time) -> io::Result<()> {
        self.steering.take_answers(self.receiver.as_fd(), now)?;
        self.steering.on_time(now, self.receiver.as_fd());
        Ok(())
    }

    /// Until when `URXE_FAULTS` holds packets back; [`Time::NEVER`] when it holds none.
    pub fn held_until(&self) -> Time {
        self.wire.next_deadline()
    }

    /// The process is about to end: nothing that arrives is for it any more, and what has arrived for others goes on
    /// to them. Closing the socket would throw away what came since it was last read, so it leaves the
    /// group first: from then on the kernel gives it nothing more, and it can be read to the end. The
    /// neighbours' sockets have other numbers then, which they notice by what reaches the wrong one of them.
    pub fn leave(&self) {
        self.steering.stop();
        let receiver = self.receiver.as_fd();
        let has_left = set_option(receiver, libc::SOL_SOCKET, SO_BINDTOIFINDEX, NO_INTERFACE);
        if let Err(error) = has_left {
            tracing::debug!(%error, "what comes between the last look and the closing is lost");
        }
        self.read_to_the_end();
        // If not, the end of the process does it.
        let _ = self.receiver.retire();
    }

    /// Reads until nothing has come for a millisecond - the kernel may have been about to give something to the
    /// socket when it left - and nothing waits for a full queue.
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

    /// Sorts the datagrams of a batch by whom they are for. Runs for the same other process go on
    /// in one piece.
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

    /// Passes a run of datagrams on to the process in another slot.
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
            // Only the first datagram of a batch was steered.
            Passed::On | Passed::Overrun if run.first_index == 0 => {
                self.steering.mistaken(clock::now());
            }
            Passed::On | Passed::Overrun => {}
        }
    }

    /// What was for a process that is gone is lost, but for QP 1, which passes to the next slot. Messages
    /// that name an ID of the dead are answered by whoever has them.
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

/// Datagrams of one batch, one after the other, for the same other process.
struct Run {
    slot: u8,
    /// Where it starts in the batch, in bytes.
    start: usize,
    first_index: u16,
}

impl Run {
    /// The part of the batch from here to `end`.
    fn cut<'a>(&self, batch: &Arrival<'a>, end: usize) -> Arrival<'a> {
        Arrival {
            first_index: self.first_index,
            bytes: &batch.bytes[self.start..end],
            ..*batch
        }
    }
}

/// Whom a message to QP 1 is for; `None` when it is none.
fn addressee(bytes: &[u8]) -> Option<Addressee> {
    let end = bytes.len().checked_sub(icrc::LEN)?;
    let packet = Packet::parse(&bytes[..end]).ok()?;
    let (_, message) = Message::parse(packet.payload).ok()?;
    Some(message.addressee())
}

/// Whether it is a message to QP 1 that names the communication that it is for.
fn names_an_id(bytes: &[u8]) -> bool {
    bth::dest_qp(bytes) == Some(Qpn::GSI) && matches!(addressee(bytes), Some(Addressee::CommId(_)))
}

/// The slot of the process that gave out a communication ID.
fn slot_of(comm_id: u32) -> u8 {
    comm_id.to_be_bytes()[0]
}

/// Whom a datagram is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Mine,
    Other(u8),
    Probe,
    /// It is too short to tell.
    Nobody,
}
