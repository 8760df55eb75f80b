//! Port steering: the BPF program that selects the receiving process of a datagram at one address,
//! and the protocol by which processes learn the indices of their sockets.
//!
//! All sockets on port 4791 of an address form a reuseport group. A socket that joins the group
//! gets the next index; when a socket leaves, the last one takes its index. The steering program,
//! in classic BPF, reads the slot from the destination QPN, or from the communication ID of a MAD,
//! and returns the index of the slot's socket.
//!
//! The kernel does not report the indices, so processes probe for them. For a QPN in slot 255 the
//! program returns the low 16 bits of the QPN, so a *probe* reaches the socket with a given index.
//! The process that receives a probe sends its slot to the prober. One round of probes (a *sweep*)
//! yields the index of every slot ([`SocketIndices`]). The process that made it attaches a new
//! program if the indices have changed, or if it has received a misdirected datagram since it
//! attached its last program.
//!
//! A process sweeps when it joins, and whenever it receives a datagram for another living process.
//! A sweep that changes the indices is followed by another one: the probes of the first may have
//! passed no program at all, and a third process may have attached a better program meanwhile. So
//! every wrong index is corrected, whichever process ends and however. A killed process leaves no shared state half written.
//!
//! A probe for an unused index reaches some socket of the group, by the kernel's hash, and is
//! answered too. A socket answers its probes in the order of their indices, so its first answer has
//! the lowest index, and its true index is lower than any unused one.
//!
//! An answer carries the sweep's random nonce, which only sockets of the group have received. Those
//! belong to this user, so no other user can make a process attach a wrong program. A wrong program
//! would cause forwarding only.

pub(super) mod program;

use crate::address::{LocalAddress, ROCE_PORT};
use crate::counters::NetCounters;
use crate::error::OpenError;
use crate::qpn::PROBE_SLOT;
use crate::slot::live_slots;
use crate::sync::lock;
use program::SocketIndices;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use urxe_proto::time::Time;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The time for which a sweep waits for missing answers.
pub(super) const SWEEP_TIMEOUT: Duration = Duration::from_millis(20);

/// The pause between two sweeps while they change the indices; otherwise it doubles.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The time for which a living process may miss the sweeps before its slot is removed from the
/// indices. A process that gets no CPU time has not ended.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of probes beyond the number of living processes: for a forked child that holds its
/// parent's socket, and for processes that join meanwhile.
const EXTRA_PROBES: u16 = 4;

/// An opcode that no transport has, so that no probe is mistaken for a packet.
const NO_OPCODE: u8 = 0xff;

const PROBE_MAGIC: [u8; 4] = *b"urxp";
const ANSWER_MAGIC: [u8; 4] = *b"urxa";

type Nonce = [u8; 16];

/// A probe to the socket with a given index. Its first 8 bytes have the layout of a BTH.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Probe {
    opcode: u8,
    flags_and_pkey: [u8; 3],
    variant: u8,
    slot: u8,
    index: [u8; 2],
    magic: [u8; 4],
    nonce: Nonce,
}

impl Probe {
    fn is_valid(&self) -> bool {
        self.magic == PROBE_MAGIC && self.opcode == NO_OPCODE
    }
}

/// Whether a UDP payload is a steering probe, which is no RoCE packet. Captures of the loopback
/// interface contain them.
pub fn is_steering_probe(payload: &[u8]) -> bool {
    Probe::ref_from_bytes(payload).is_ok_and(Probe::is_valid)
}

/// The answer to a probe: the slot of the socket that received it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Answer {
    magic: [u8; 4],
    slot: u8,
    reserved: u8,
    index: [u8; 2],
    nonce: Nonce,
}

/// The state that this process keeps about one address's group.
pub(super) struct Steering {
    address: LocalAddress,
    slot: u8,
    counters: Arc<NetCounters>,
    /// The socket that sends probes and receives answers.
    prober: Socket,
    state: Mutex<State>,
    /// The lowest slot of the group, which receives the messages to QP 1.
    lowest: AtomicU8,
}

struct State {
    indices: SocketIndices,
    /// Slots in `indices` that did not answer the last sweep, with the time of the first miss. The
    /// process may be stopped, slow, or replaced by one that is not in this group. A slot that
    /// answers nothing for [`SLOT_TIMEOUT`] is removed from the indices.
    missed: BTreeMap<u8, Time>,
    /// Whether this process does not sweep: the kernel has refused its program, or its socket has left
    /// the group.
    is_disabled: bool,
    sweep: Option<Sweep>,
    /// Whether the attached program may be another process's. Then the next sweep attaches this
    /// process's program even if the indices are unchanged.
    is_stale: bool,
    /// Whether a sweep is due, at `not_before` or later.
    pending: bool,
    not_before: Time,
    pause: Duration,
}

struct Sweep {
    nonce: Nonce,
    /// The first answer of each slot.
    answers: SocketIndices,
    live: Vec<u8>,
    /// The number of probes without an answer.
    unanswered: u16,
    /// The time at which the sweep is evaluated with the answers so far; `NEVER` after that. Later
    /// answers still count.
    deadline: Time,
    /// Whether answers have arrived since the last evaluation.
    changed: bool,
}

impl Steering {
    /// Starts to learn the indices of the group that `receiver`, this process's socket, has joined.
    pub(super) fn join(
        address: LocalAddress,
        slot: u8,
        receiver: BorrowedFd<'_>,
        counters: Arc<NetCounters>,
        now: Time,
    ) -> Result<Steering, OpenError> {
        let steering = Steering {
            address,
            slot,
            counters,
            prober: open_probe_socket(address)?,
            state: Mutex::new(State {
                indices: SocketIndices::new(),
                missed: BTreeMap::new(),
                is_disabled: false,
                sweep: None,
                is_stale: true,
                pending: false,
                not_before: Time(0),
                pause: MIN_PAUSE,
            }),
            lowest: AtomicU8::new(slot),
        };
        let live = live_slots().map_err(|e| OpenError::system("listing processes", e))?;
        let mut state = steering.state();
        if live.iter().all(|&other| other == slot) {
            state.indices.insert(slot, 0);
            steering.attach(&mut state, receiver);
        } else {
            steering.start(&mut state, live, now);
        }
        drop(state);
        Ok(steering)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The socket on which answers arrive. When it is readable, call [`Steering::receive_answers`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.prober.as_fd()
    }

    /// The lowest slot of the group, according to this process's last sweep.
    pub(super) fn lowest(&self) -> u8 {
        self.lowest.load(Ordering::Relaxed)
    }

    /// Handles a datagram for another living process that was steered here: the program is wrong, and
    /// a sweep starts if one may begin now.
    pub(super) fn misdirected(&self, now: Time) {
        let mut state = self.state();
        let running = state
            .sweep
            .as_ref()
            .is_some_and(|s| s.deadline != Time::NEVER);
        if !running && !state.is_disabled {
            state.pending = true;
        }
        state.is_stale = true;
        drop(state);
        self.advance(now, None);
    }

    /// Handles the end of the process that held `slot`: a sweep starts if one may begin now.
    pub(super) fn process_ended(&self, slot: u8, now: Time) {
        let mut state = self.state();
        if state.indices.remove(&slot).is_some() {
            state.pending = !state.is_disabled;
            state.is_stale = true;
            self.update_lowest(&state.indices);
        }
        drop(state);
        self.advance(now, None);
    }

    fn update_lowest(&self, indices: &SocketIndices) {
        let lowest = indices
            .keys()
            .next()
            .map_or(self.slot, |&s| s.min(self.slot));
        self.lowest.store(lowest, Ordering::Relaxed);
    }

    /// The time of the next call of [`Steering::on_time`].
    pub(super) fn next_deadline(&self) -> Time {
        let state = self.state();
        let sweep = state.sweep.as_ref().map_or(Time::NEVER, |s| s.deadline);
        let pending = if state.pending {
            state.not_before
        } else {
            Time::NEVER
        };
        sweep.min(pending)
    }

    /// Ends a sweep whose time is over, and starts one that is due.
    pub(super) fn on_time(&self, now: Time, receiver: BorrowedFd<'_>) {
        self.advance(now, Some(receiver));
    }

    fn advance(&self, now: Time, receiver: Option<BorrowedFd<'_>>) {
        let mut state = self.state();
        if let Some(receiver) = receiver
            && state.sweep.as_ref().is_some_and(|s| s.deadline <= now)
        {
            self.evaluate(&mut state, receiver, now);
        }
        let running = state
            .sweep
            .as_ref()
            .is_some_and(|s| s.deadline != Time::NEVER);
        if state.pending && !running && state.not_before <= now {
            match live_slots() {
                Ok(live) => self.start(&mut state, live, now),
                Err(error) => {
                    tracing::debug!(%error, "cannot list processes");
                    state.not_before = now + MAX_PAUSE;
                }
            }
        }
    }

    /// Starts a sweep: sends a probe to each index that a socket may have.
    fn start(&self, state: &mut State, live: Vec<u8>, now: Time) {
        let nonce: Nonce = crate::random::any();
        let count = live.len() as u16 + EXTRA_PROBES;
        self.counters.sweeps.add(1);
        let to = self.address.with_port(ROCE_PORT).into();
        for index in 0..count {
            let probe = Probe {
                opcode: NO_OPCODE,
                flags_and_pkey: [0; 3],
                variant: 0,
                slot: PROBE_SLOT,
                index: index.to_be_bytes(),
                magic: PROBE_MAGIC,
                nonce,
            };
            match self.prober.send_to(probe.as_bytes(), &to) {
                Ok(_) => self.counters.probes_out.add(1),
                // The sweep stays incomplete; the next misdirected datagram starts another one.
                Err(error) => tracing::debug!(%error, "a probe was not sent"),
            }
        }
        state.pending = false;
        state.sweep = Some(Sweep {
            nonce,
            answers: SocketIndices::new(),
            live,
            unanswered: count,
            deadline: now + SWEEP_TIMEOUT,
            changed: false,
        });
    }

    /// Answers `bytes` from `src` through `receiver` if they are a valid probe; else counts a
    /// rejection.
    pub(super) fn answer_probe(&self, receiver: &Socket, src: SocketAddr, bytes: &[u8]) {
        // A probe is sent from the same address of this host.
        let probe = Probe::read_from_bytes(bytes)
            .ok()
            .filter(Probe::is_valid)
            .filter(|_| src.ip() == self.address.ip());
        let Some(probe) = probe else {
            self.counters.probes_rejected.add(1);
            return;
        };
        self.counters.probes_in.add(1);
        let answer = Answer {
            magic: ANSWER_MAGIC,
            slot: self.slot,
            reserved: 0,
            index: probe.index,
            nonce: probe.nonce,
        };
        if let Err(error) = receiver.send_to(answer.as_bytes(), &src.into()) {
            tracing::debug!(%error, "a probe could not be answered");
        }
    }

    /// Receives answers, and attaches the program once they yield all indices.
    pub(super) fn receive_answers(&self, receiver: BorrowedFd<'_>, now: Time) -> io::Result<()> {
        let mut state = self.state();
        let mut buffer = [0_u8; 64];
        let me = self.address.with_port(ROCE_PORT);
        loop {
            let (bytes, from) = match rustix::net::recvfrom(
                &self.prober,
                &mut buffer,
                rustix::net::RecvFlags::TRUNC,
            ) {
                Ok((_, len, from)) => (buffer.get(..len), from),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            };
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            let answer = bytes
                .and_then(|bytes| Answer::read_from_bytes(bytes).ok())
                .filter(|a| a.magic == ANSWER_MAGIC && a.slot != PROBE_SLOT)
                .filter(|_| {
                    from.is_some_and(|from| from.ip() == me.ip() && from.port() == me.port())
                });
            match (answer, &mut state.sweep) {
                (Some(answer), Some(sweep)) if answer.nonce == sweep.nonce => {
                    sweep.unanswered = sweep.unanswered.saturating_sub(1);
                    let index = u16::from_be_bytes(answer.index);
                    sweep.answers.entry(answer.slot).or_insert_with(|| {
                        sweep.changed = true;
                        index
                    });
                }
                _ => self.counters.probes_rejected.add(1),
            }
        }
        let evaluate = state.sweep.as_ref().is_some_and(|sweep| {
            let complete = sweep
                .live
                .iter()
                .all(|slot| sweep.answers.contains_key(slot));
            let late = sweep.deadline == Time::NEVER;
            // While processes join at the same time, none has attached a program, and all probes of
            // a sweep may reach one socket. When all are answered, the missing slots will not
            // answer.
            let over = sweep.unanswered == 0;
            sweep.changed && (complete || late || over)
        });
        if evaluate {
            self.evaluate(&mut state, receiver, now);
        }
        Ok(())
    }

    /// Stops all sweeps: the socket leaves the group.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.is_disabled = true;
        state.pending = false;
        state.sweep = None;
    }

    /// Evaluates the answers of the sweep.
    fn evaluate(&self, state: &mut State, receiver: BorrowedFd<'_>, now: Time) {
        let Some(sweep) = &mut state.sweep else {
            return;
        };
        let late = sweep.deadline == Time::NEVER;
        sweep.deadline = Time::NEVER;
        sweep.changed = false;
        let before = state.indices.clone();
        state.indices.retain(|slot, index| {
            if sweep.answers.contains_key(slot) {
                state.missed.remove(slot);
                return true;
            }
            let taken = sweep.answers.values().any(|i| i == index);
            let out = !late && now.since(*state.missed.entry(*slot).or_insert(now)) >= SLOT_TIMEOUT;
            !taken && !out && sweep.live.contains(slot)
        });
        state.indices.extend(&sweep.answers);
        state
            .missed
            .retain(|slot, _| state.indices.contains_key(slot));
        self.update_lowest(&state.indices);
        let is_new = state.indices != before;
        state.pause = if is_new {
            MIN_PAUSE
        } else {
            (state.pause * 2).min(MAX_PAUSE)
        };
        let attaches = is_new || state.is_stale;
        state.pending |= attaches || !state.missed.is_empty();
        state.not_before = now + state.pause;
        // A process may have joined and attached a better program during this sweep. So a process
        // that attaches one sweeps again. A process whose indices are unchanged keeps the program.
        if attaches {
            state.is_stale = false;
            self.attach(state, receiver);
        }
    }

    /// Attaches a program for the indices that this process has learnt.
    fn attach(&self, state: &mut State, receiver: BorrowedFd<'_>) {
        let own = state.indices.get(&self.slot).copied();
        match program::attach(receiver, &state.indices, own) {
            Ok(()) => {
                self.counters.steering_attached.add(1);
                tracing::debug!(address = %self.address, indices = ?state.indices, "steering");
            }
            Err(error) => {
                tracing::debug!(%error, "no steering program: misdirected datagrams are forwarded");
                state.is_disabled = true;
                state.pending = false;
            }
        }
    }
}

pub(super) fn open_probe_socket(address: LocalAddress) -> Result<Socket, OpenError> {
    let domain = match address.ip() {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(domain, kind, Some(Protocol::UDP))
        .map_err(|e| OpenError::system("opening a UDP socket", e))?;
    socket
        .bind(&address.with_port(0).into())
        .map_err(|e| OpenError::bind(address, e))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::open_receiver;
    use crate::tests::own_address;

    #[test]
    fn answers_from_another_address_or_to_another_sweep_are_rejected() {
        let address = own_address();
        let receiver = open_receiver(address, true).unwrap();
        let counters = Arc::new(NetCounters::default());
        let fd = receiver.as_fd();
        let steering = Steering::join(address, 3, fd, counters.clone(), Time(0)).unwrap();
        let live = vec![3, 4];
        steering.start(&mut steering.state(), live, Time(1));
        let nonce = steering.state().sweep.as_ref().unwrap().nonce;
        let before = steering.state().indices.clone();
        let answer = |nonce: Nonce| Answer {
            magic: ANSWER_MAGIC,
            slot: 4,
            reserved: 0,
            index: [0, 1],
            nonce,
        };
        let to = steering.prober.local_addr().unwrap();
        let other = open_probe_socket(address).unwrap();
        other.send_to(answer(nonce).as_bytes(), &to).unwrap();
        let wrong = nonce.map(|byte| !byte);
        receiver.send_to(answer(wrong).as_bytes(), &to).unwrap();
        receiver.send_to(b"nonsense", &to).unwrap();
        receiver.send_to(&[0; 500], &to).unwrap();
        steering.receive_answers(fd, Time(2)).unwrap();
        assert_eq!(counters.probes_rejected.get(), 4);
        assert!(steering.state().sweep.as_ref().unwrap().answers.is_empty());
        assert_eq!(steering.state().indices, before);
        // An answer from the right address with the right nonce counts.
        receiver.send_to(answer(nonce).as_bytes(), &to).unwrap();
        steering.receive_answers(fd, Time(3)).unwrap();
        steering.on_time(Time(u64::MAX), fd);
        assert_eq!(steering.state().indices.get(&4), Some(&1));
    }

    #[test]
    fn sweep_without_changes_keeps_the_attached_program() {
        let address = own_address();
        let sockets = [(); 2].map(|()| open_receiver(address, true).unwrap());
        let counters = Arc::new(NetCounters::default());
        let [first, second] = [(&sockets[0], 3), (&sockets[1], 9)].map(|(socket, slot)| {
            Steering::join(address, slot, socket.as_fd(), counters.clone(), Time(0)).unwrap()
        });
        let fd = sockets[0].as_fd();
        // The first sweep began before the second socket joined, so only the first socket has
        // answered.
        for now in [1, 2] {
            let mut state = first.state();
            first.start(&mut state, vec![3, 9], Time(now));
            state.sweep.as_mut().unwrap().answers = SocketIndices::from([(3, 0)]);
            if now == 2 {
                // Meanwhile the second process has learnt all indices.
                let whole = SocketIndices::from([(3, 0), (9, 1)]);
                program::attach(sockets[1].as_fd(), &whole, Some(1)).unwrap();
            }
            first.evaluate(&mut state, fd, Time(now));
        }
        assert!(!first.state().pending);
        let packet = [4, 0, 0, 0, 0, 9, 0, 7, 0, 0, 0, 0, 0x55];
        let to = address.with_port(ROCE_PORT).into();
        second.prober.send_to(&packet, &to).unwrap();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
        let is_there = |len: io::Result<usize>| len.is_ok_and(|len| len == packet.len());
        let found = std::iter::from_fn(|| sockets[1].recv(&mut buffer).ok().map(Ok));
        assert!(found.into_iter().any(is_there));
        // A process that received a datagram of another one attaches its indices, changed or not.
        let mut state = first.state();
        state.is_stale = true;
        first.start(&mut state, vec![3, 9], Time(3));
        state.sweep.as_mut().unwrap().answers = SocketIndices::from([(3, 0)]);
        let before = counters.steering_attached.get();
        first.evaluate(&mut state, fd, Time(3));
        assert!(state.pending && counters.steering_attached.get() > before);
    }

    #[test]
    fn slot_that_does_not_answer_is_removed_after_the_timeout() {
        let address = own_address();
        let receiver = open_receiver(address, true).unwrap();
        let fd = receiver.as_fd();
        let counters = Arc::new(NetCounters::default());
        let steering = Steering::join(address, 3, fd, counters, Time(0)).unwrap();
        steering.state().indices = SocketIndices::from([(3, 0), (9, 1)]);
        let first = Time(1);
        let before = first + SLOT_TIMEOUT / 2;
        let over = first + SLOT_TIMEOUT;
        for (now, rest) in [(first, vec![3, 9]), (before, vec![3, 9]), (over, vec![3])] {
            let mut state = steering.state();
            steering.start(&mut state, vec![3, 9], now);
            let sweep = state.sweep.as_mut().unwrap();
            sweep.answers = SocketIndices::from([(3, 0)]);
            steering.evaluate(&mut state, fd, now);
            assert_eq!(state.indices.keys().copied().collect::<Vec<_>>(), rest);
            assert!(state.pending);
        }
    }
}
