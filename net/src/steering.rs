//! Port steering: the BPF program that selects the receiving socket of a datagram at one address,
//! and the protocol by which processes learn the indices of their sockets.
//!
//! All sockets on port 4791 of an address form a reuseport group. A socket that joins the group
//! gets the next index; when a socket leaves, the last one takes its index. The steering program,
//! in classic BPF, reads the slot from the destination QPN, or from the communication ID of a MAD,
//! and returns the index of the slot's socket. A process may have several sockets at the address,
//! see `receivers`. The program then selects one by the low bits of the destination QPN.
//!
//! The kernel does not report the indices, so processes probe for them. For a QPN in slot 255 the
//! program returns the low 16 bits of the QPN, so a *probe* reaches the socket with a given index.
//! The process that receives a probe sends its slot, the number of the socket and the number of its
//! sockets to the prober. One round of probes (a *sweep*) yields the index of every socket
//! ([`SocketIndices`]). If the answers announce more sockets than the prober expected, it sends
//! further probes. The process that made the sweep attaches a new program if the indices have
//! changed, or if it has received a misdirected datagram since it attached its last program.
//!
//! A process sweeps when it joins, when it opens further sockets, and whenever it receives a
//! datagram for another living process, or for a queue pair of its own at another of its sockets
//! than its last program selects.
//!
//! A sweep that changes the indices is followed by another one: the probes of the first may have
//! passed no program at all, and a third process may have attached a better program meanwhile. So
//! every wrong index is corrected, whichever process ends and however. A killed process leaves no
//! shared state half written.
//!
//! A probe for an unused index reaches some socket of the group, by the kernel's hash, and is
//! answered too. A socket answers its probes in the order of their indices, so its first answer has
//! the lowest index, and its true index is lower than any unused one.
//!
//! An answer carries the sweep's random nonce, which only sockets of the group have received. Those
//! belong to this user, so no other user can make a process attach a wrong program. A wrong program
//! would cause forwarding only.

pub(super) mod program;
mod sweep;

pub use sweep::is_steering_probe;

use crate::address::{LocalAddress, ROCE_PORT};
use crate::counters::NetCounters;
use crate::error::OpenError;
use crate::qpn::PROBE_SLOT;
use crate::slot::live_slots;
use crate::sync::lock;
use program::{SocketId, SocketIndices};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use sweep::{ANSWER_MAGIC, Answer, NO_OPCODE, PROBE_MAGIC, Probe, Sweep};
use urxe_proto::time::Time;
use zerocopy::{FromBytes, IntoBytes};

/// The time for which a sweep waits for missing answers.
pub(super) const SWEEP_TIMEOUT: Duration = Duration::from_millis(20);

/// The pause between two sweeps while they change the indices; otherwise it doubles.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The time for which a living process may miss the sweeps before its slot is removed from the
/// indices. A process that gets no CPU time has not ended.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// The number of this process's sockets in the group.
    own_sockets: AtomicUsize,
    /// The number of this process's sockets to which the last program that it attached distributes.
    steered_sockets: AtomicUsize,
    /// The latest end of the drain of socket 0, or [`NOT_DRAINING`]. `Time::NEVER` while a program
    /// is being attached that distributes to more sockets than the one before.
    drain_ends: AtomicU64,
}

/// See [`Steering::must_drain`].
const NOT_DRAINING: u64 = 0;

/// The longest time for which the other sockets are not read while socket 0 has datagrams from
/// before the program. A socket that always has datagrams must not stop the others.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_millis(5);

struct State {
    indices: SocketIndices,
    /// Sockets in `indices` that did not answer the last sweep, with the time of the first miss.
    /// The process may be stopped, slow, or replaced by one that is not in this group. A socket of
    /// another process that answers nothing for [`SLOT_TIMEOUT`] is removed from the indices.
    missed: BTreeMap<SocketId, Time>,
    /// Whether this process does not sweep: the kernel has refused its program, or its sockets have
    /// left the group.
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
            own_sockets: AtomicUsize::new(1),
            steered_sockets: AtomicUsize::new(1),
            drain_ends: AtomicU64::new(NOT_DRAINING),
        };
        let live = live_slots().map_err(|e| OpenError::system("listing processes", e))?;
        let mut state = steering.state();
        if live.iter().all(|&other| other == slot) {
            state.indices.insert((slot, 0), 0);
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

    /// The number of this process's sockets in the group.
    #[inline]
    pub(super) fn own_sockets(&self) -> usize {
        self.own_sockets.load(Ordering::Relaxed)
    }

    /// The number of this process's sockets, a power of two, to which the last program that it
    /// attached distributes.
    #[inline]
    pub(super) fn steered_sockets(&self) -> usize {
        self.steered_sockets.load(Ordering::Relaxed)
    }

    /// Whether the socket with this number must not be read yet: socket 0 may have earlier
    /// datagrams of a connection that a new program has moved to this one.
    #[inline]
    pub(super) fn must_drain(&self, number: usize) -> bool {
        let ends = self.drain_ends.load(Ordering::Acquire);
        ends != NOT_DRAINING && number != 0 && crate::clock::now() < Time(ends)
    }

    /// Returns a token for [`Steering::drained`], to be taken before socket 0 is read.
    #[inline]
    pub(super) fn drain_token(&self) -> u64 {
        self.drain_ends.load(Ordering::Acquire)
    }

    /// Records that socket 0 was empty after `token` was taken.
    #[inline]
    pub(super) fn drained(&self, token: u64) {
        if token != NOT_DRAINING && token != Time::NEVER.0 {
            let _ = (self.drain_ends).compare_exchange(
                token,
                NOT_DRAINING,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Whether the kernel has refused this process's program, or its sockets have left the group.
    pub(super) fn is_disabled(&self) -> bool {
        self.state().is_disabled
    }

    /// Sets the number of this process's sockets in the group, which only grows. If it has changed,
    /// a sweep for the new ones starts as soon as one may begin.
    pub(super) fn set_own_sockets(&self, count: usize, now: Time) {
        let mut state = self.state();
        if self.own_sockets.swap(count, Ordering::Relaxed) == count || state.is_disabled {
            return;
        }
        state.pending = true;
        state.not_before = now;
        drop(state);
        self.advance(now, None);
    }

    /// Handles a datagram that was steered here and is for another living process, or for another
    /// socket of this one: the program is wrong, and a sweep starts if one may begin now.
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
        let before = state.indices.len();
        state.indices.retain(|socket, _| socket.0 != slot);
        if state.indices.len() != before {
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
            .map_or(self.slot, |&(slot, _)| slot.min(self.slot));
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
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(receiver) = receiver
            && let Some(sweep) = state.sweep.as_mut().filter(|sweep| sweep.deadline <= now)
        {
            let most = sweep.most_probes();
            if sweep.probes < most {
                // A stopped process does not say how many sockets it has. Without probes to all of
                // them, this process might not learn the index of its own.
                self.probe(sweep, most);
                sweep.deadline = now + SWEEP_TIMEOUT;
            } else {
                self.evaluate(state, receiver, now);
            }
        }
        let running = state
            .sweep
            .as_ref()
            .is_some_and(|s| s.deadline != Time::NEVER);
        if state.pending && !running && state.not_before <= now {
            match live_slots() {
                Ok(live) => self.start(state, live, now),
                Err(error) => {
                    tracing::debug!(%error, "cannot list processes");
                    state.not_before = now + MAX_PAUSE;
                }
            }
        }
    }

    /// Starts a sweep: sends a probe to each index that a socket may have.
    fn start(&self, state: &mut State, live: Vec<u8>, now: Time) {
        self.counters.sweeps.add(1);
        let mut sweep = Sweep {
            nonce: crate::random::any(),
            answers: SocketIndices::new(),
            announced: BTreeMap::new(),
            live,
            probes: 0,
            unanswered: 0,
            deadline: now + SWEEP_TIMEOUT,
            changed: false,
        };
        // Besides one of each process: its own sockets, and those that the last sweeps have found.
        let of_others = state.indices.keys().filter(|(slot, number)| {
            *slot != self.slot && *number > 0 && sweep.live.contains(slot)
        });
        let further = of_others.count() + self.own_sockets() - 1;
        let count = sweep.needed_probes() + further as u16;
        self.probe(&mut sweep, count);
        state.pending = false;
        state.sweep = Some(sweep);
    }

    /// Sends probes to the next indices until `count` have been sent.
    fn probe(&self, sweep: &mut Sweep, count: u16) {
        let to = self.address.with_port(ROCE_PORT).into();
        for index in sweep.probes..count {
            let probe = Probe {
                opcode: NO_OPCODE,
                flags_and_pkey: [0; 3],
                variant: 0,
                slot: PROBE_SLOT,
                index: index.to_be_bytes(),
                magic: PROBE_MAGIC,
                nonce: sweep.nonce,
            };
            match self.prober.send_to(probe.as_bytes(), &to) {
                Ok(_) => self.counters.probes_out.add(1),
                // The sweep stays incomplete; the next misdirected datagram starts another one.
                Err(error) => tracing::debug!(%error, "a probe was not sent"),
            }
        }
        sweep.unanswered += count.saturating_sub(sweep.probes);
        sweep.probes = sweep.probes.max(count);
    }

    /// Answers `bytes` from `src`, which have arrived at the socket with a number, if they are a
    /// valid probe; else counts a rejection. The answer is sent through `sender`, which may be any
    /// of this process's sockets in the group.
    pub(super) fn answer_probe(
        &self,
        sender: &Socket,
        number: usize,
        src: SocketAddr,
        bytes: &[u8],
    ) {
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
            sockets: Answer::sockets(number, self.own_sockets()),
            index: probe.index,
            nonce: probe.nonce,
        };
        if let Err(error) = sender.send_to(answer.as_bytes(), &src.into()) {
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
                    if sweep.answered(&answer) {
                        self.probe(sweep, sweep.needed_probes());
                    }
                }
                _ => self.counters.probes_rejected.add(1),
            }
        }
        let evaluate = state.sweep.as_ref().is_some_and(|sweep| {
            let late = sweep.deadline == Time::NEVER;
            // While processes join at the same time, none has attached a program, and all probes of
            // a sweep may reach one socket. When all are answered, the missing sockets will not
            // answer.
            let over = sweep.unanswered == 0;
            sweep.changed && (late || over || sweep.is_complete())
        });
        if evaluate {
            self.evaluate(&mut state, receiver, now);
        }
        Ok(())
    }

    /// Stops all sweeps: the sockets leave the group.
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
        state.indices.retain(|socket, index| {
            if sweep.answers.contains_key(socket) {
                state.missed.remove(socket);
                return true;
            }
            let taken = sweep.answers.values().any(|i| i == index);
            let over =
                !late && now.since(*state.missed.entry(*socket).or_insert(now)) >= SLOT_TIMEOUT;
            // This process has not left the group, however late it reads a socket.
            let out = over && socket.0 != self.slot;
            !taken && !out && sweep.may_have(*socket)
        });
        state.indices.extend(&sweep.answers);
        state
            .missed
            .retain(|socket, _| state.indices.contains_key(socket));
        let own = state.indices.range((self.slot, 0)..=(self.slot, u8::MAX));
        let knows_own = own.count() >= self.own_sockets();
        self.update_lowest(&state.indices);
        let is_new = state.indices != before;
        state.pause = if is_new {
            MIN_PAUSE
        } else {
            (state.pause * 2).min(MAX_PAUSE)
        };
        let attaches = is_new || state.is_stale;
        state.pending |= attaches || !state.missed.is_empty() || !knows_own;
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
        let mut slots = program::distribution(&state.indices);
        let own =
            |slots: &program::Distribution| slots.get(&self.slot).cloned().unwrap_or_default();
        let others = own(&slots).first().copied();
        let is_wider = own(&slots).len() > self.steered_sockets();
        if is_wider {
            self.drain_ends.store(Time::NEVER.0, Ordering::Release);
        }
        let mut attached = program::attach(receiver, &slots, others);
        if attached.is_err() && slots.values().any(|sockets| sockets.len() > 1) {
            // A long program may exceed `net.core.optmem_max`.
            slots.values_mut().for_each(|sockets| sockets.truncate(1));
            attached = program::attach(receiver, &slots, others);
        }
        match attached {
            Ok(()) => {
                let steered = own(&slots).len().max(1);
                self.steered_sockets.store(steered, Ordering::Relaxed);
                self.counters.steering_attached.add(1);
                tracing::debug!(address = %self.address, indices = ?state.indices, "steering");
            }
            Err(error) => {
                tracing::debug!(%error, "no steering program: misdirected datagrams are forwarded");
                state.is_disabled = true;
                state.pending = false;
            }
        }
        if is_wider {
            let ends = crate::clock::now() + DRAIN_TIMEOUT;
            self.drain_ends.store(ends.0, Ordering::Release);
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
mod tests;
