//! Which process's socket gets a datagram: the steering program of one address, and how its order
//! of sockets is learnt.
//!
//! All sockets on port 4791 of an address form a group, in which the kernel numbers them in the
//! order in which they joined; when one closes, the last one takes its number. A classic BPF program
//! reads the slot from the destination QPN, or from the communication ID of a MAD, and returns the
//! number of the socket for it. Nothing
//! tells a process its number, so it asks: for a QPN in slot 255 the program returns what stands in
//! the low 16 bits of the QPN, so that a *probe* reaches the socket of a given number. Whoever gets
//! one answers with its slot, straight to the sender. One round of probes (a *sweep*) thus tells the
//! whole order, and who made it attaches the program anew.
//!
//! A process sweeps when it joins, and whenever a datagram reaches it that is for another living
//! process; and as long as a sweep tells something new, another one follows, for the first may have
//! gone through no program at all, and a third process may have attached a better program meanwhile. Who learns nothing new
//! attaches nothing. No mistake outlasts that, whoever died and however. Nothing is shared that a
//! dying process could leave half written. A probe for a number that no socket has is given to any
//! of them by the kernel's hash, and gets an answer too; but a socket answers its probes in order,
//! so its first answer is its lowest, and its true number is lower than any that nobody has.
//!
//! An answer carries the sweep's random number, which only sockets of the group have seen, and those
//! belong to this user; so nobody else can make a process attach a wrong program. (It would not do
//! more than cost the detour over the right process, either.)

pub(super) mod program;

use crate::counters::NetCounters;
use crate::error::OpenError;
use crate::slot::live_slots;
use crate::socket::{LocalAddress, ROCE_PORT};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use urxe_proto::time::Time;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The slot of probes, which no process holds.
pub(super) const PROBE_SLOT: u8 = 0xff;

/// How long a sweep waits for processes that do not answer.
pub(super) const SWEEP_TIME: Duration = Duration::from_millis(20);

/// The pause between two sweeps, as long as they tell something new; it doubles when they do not.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a slot of a living process may stay silent, sweep after sweep, before it is out of the order:
/// a process that got no processor is not gone.
const SILENCE_TIME: Duration = Duration::from_secs(1);

/// How many more sockets than living processes a sweep looks for: a forked child that holds its
/// parent's socket, processes that join meanwhile.
const EXTRA_PROBES: u16 = 4;

/// An opcode that no transport has, so that a probe never passes for a packet.
const NO_OPCODE: u8 = 0xff;

const PROBE_MAGIC: [u8; 4] = *b"urxp";
const ANSWER_MAGIC: [u8; 4] = *b"urxa";

type Nonce = [u8; 16];

/// A question to the socket of a number. Its first 8 bytes are where a BTH has them.
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

/// Who has that number.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Answer {
    magic: [u8; 4],
    slot: u8,
    reserved: u8,
    index: [u8; 2],
    nonce: Nonce,
}

/// The number of each slot's socket.
pub(super) type Order = BTreeMap<u8, u16>;

/// What this process knows of one address's group.
pub(super) struct Steering {
    address: LocalAddress,
    slot: u8,
    counters: Arc<NetCounters>,
    /// Sends probes and gets answers.
    asker: Socket,
    state: Mutex<State>,
    /// The lowest slot of the group, which gets QP 1.
    lowest: AtomicU8,
}

struct State {
    order: Order,
    /// Slots of the order that did not answer the last sweep, and since when: stopped, slow, or another
    /// process by now, one that is not of this group. Not to answer twice, for [`SILENCE_TIME`], is to be
    /// out of it.
    silent: BTreeMap<u8, Time>,
    /// Whether this process may not attach programs, or will not any more: then there is no point
    /// in sweeping.
    refused: bool,
    sweep: Option<Sweep>,
    /// What the kernel has may be another process's program: that of this one's order is to be attached though the
    /// next sweep tells nothing new.
    in_doubt: bool,
    /// A sweep is wanted, and must wait for `not_before`.
    wanted: bool,
    not_before: Time,
    pause: Duration,
}

struct Sweep {
    nonce: Nonce,
    /// Only the first answer of each slot.
    answers: Order,
    live: Vec<u8>,
    /// How many probes are not answered yet.
    unanswered: u16,
    /// When it goes by the answers that it has; `NEVER` when it has done so. Later ones still count.
    deadline: Time,
    news: bool,
}

impl Steering {
    /// `receiver` is this process's socket, which has just joined the group.
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
            asker: open_asker(address)?,
            state: Mutex::new(State {
                order: Order::new(),
                silent: BTreeMap::new(),
                refused: false,
                sweep: None,
                in_doubt: true,
                wanted: false,
                not_before: Time(0),
                pause: SHORTEST_PAUSE,
            }),
            lowest: AtomicU8::new(slot),
        };
        let live = live_slots().map_err(|e| OpenError::system("looking for processes", e))?;
        let mut state = steering.state();
        if live.iter().all(|&other| other == slot) {
            state.order.insert(slot, 0);
            steering.attach(&mut state, receiver);
        } else {
            steering.start(&mut state, live, now);
        }
        drop(state);
        Ok(steering)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where answers arrive: call [`Steering::take_answers`] when it is readable.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.asker.as_fd()
    }

    /// The lowest slot of the group as far as this process knows.
    pub(super) fn lowest(&self) -> u8 {
        self.lowest.load(Ordering::Relaxed)
    }

    /// A datagram for `slot`, a living process, was steered here: the program is wrong.
    pub(super) fn mistaken(&self, now: Time) {
        let mut state = self.state();
        let running = state
            .sweep
            .as_ref()
            .is_some_and(|s| s.deadline != Time::NEVER);
        if !running && !state.refused {
            state.wanted = true;
        }
        state.in_doubt = true;
        drop(state);
        self.on_time_inner(now, None);
    }

    /// No process holds `slot` any more.
    pub(super) fn gone(&self, slot: u8, now: Time) {
        let mut state = self.state();
        if state.order.remove(&slot).is_some() {
            state.wanted = !state.refused;
            state.in_doubt = true;
            self.note_lowest(&state.order);
        }
        drop(state);
        self.on_time_inner(now, None);
    }

    fn note_lowest(&self, order: &Order) {
        let lowest = order.keys().next().map_or(self.slot, |&s| s.min(self.slot));
        self.lowest.store(lowest, Ordering::Relaxed);
    }

    /// When [`Steering::on_time`] has something to do.
    pub(super) fn next_deadline(&self) -> Time {
        let state = self.state();
        let sweep = state.sweep.as_ref().map_or(Time::NEVER, |s| s.deadline);
        let wanted = if state.wanted {
            state.not_before
        } else {
            Time::NEVER
        };
        sweep.min(wanted)
    }

    /// Ends a sweep whose time is over, and starts one that is wanted.
    pub(super) fn on_time(&self, now: Time, receiver: BorrowedFd<'_>) {
        self.on_time_inner(now, Some(receiver));
    }

    fn on_time_inner(&self, now: Time, receiver: Option<BorrowedFd<'_>>) {
        let mut state = self.state();
        if let Some(receiver) = receiver
            && state.sweep.as_ref().is_some_and(|s| s.deadline <= now)
        {
            self.conclude(&mut state, receiver, now);
        }
        let running = state
            .sweep
            .as_ref()
            .is_some_and(|s| s.deadline != Time::NEVER);
        if state.wanted && !running && state.not_before <= now {
            match live_slots() {
                Ok(live) => self.start(&mut state, live, now),
                Err(error) => {
                    tracing::debug!(%error, "cannot look for processes");
                    state.not_before = now + LONGEST_PAUSE;
                }
            }
        }
    }

    /// Sends a probe to each number that a socket may have.
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
            match self.asker.send_to(probe.as_bytes(), &to) {
                Ok(_) => self.counters.probes_out.add(1),
                // The sweep stays incomplete, and the next mistake starts another one.
                Err(error) => tracing::debug!(%error, "a probe was not sent"),
            }
        }
        state.wanted = false;
        state.sweep = Some(Sweep {
            nonce,
            answers: Order::new(),
            live,
            unanswered: count,
            deadline: now + SWEEP_TIME,
            news: false,
        });
    }

    /// Whether `bytes` from `src` is a probe; if so it is answered through `receiver`.
    pub(super) fn take_probe(&self, receiver: &Socket, src: SocketAddr, bytes: &[u8]) {
        // A probe comes from this very address, on this very host.
        let probe = Probe::read_from_bytes(bytes)
            .ok()
            .filter(|p| p.magic == PROBE_MAGIC && p.opcode == NO_OPCODE)
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

    /// Reads the answers that have arrived, and attaches the program when they tell the order.
    pub(super) fn take_answers(&self, receiver: BorrowedFd<'_>, now: Time) -> io::Result<()> {
        let mut state = self.state();
        let mut room = [0_u8; 64];
        let me = self.address.with_port(ROCE_PORT);
        loop {
            let (bytes, from) = match rustix::net::recvfrom(
                &self.asker,
                &mut room,
                rustix::net::RecvFlags::TRUNC,
            ) {
                Ok((_, len, from)) => (room.get(..len), from),
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
                        sweep.news = true;
                        index
                    });
                }
                _ => self.counters.probes_rejected.add(1),
            }
        }
        let conclude = state.sweep.as_ref().is_some_and(|sweep| {
            let complete = sweep
                .live
                .iter()
                .all(|slot| sweep.answers.contains_key(slot));
            let late = sweep.deadline == Time::NEVER;
            // Of those who join at the same moment none has attached a program yet, and all of a sweep's
            // probes reach the same one: whoever is missing will not answer this time.
            let over = sweep.unanswered == 0;
            sweep.news && (complete || late || over)
        });
        if conclude {
            self.conclude(&mut state, receiver, now);
        }
        Ok(())
    }

    /// The socket leaves the group: it is no longer this process's business.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.refused = true;
        state.wanted = false;
        state.sweep = None;
    }

    /// Goes by what has been answered.
    fn conclude(&self, state: &mut State, receiver: BorrowedFd<'_>, now: Time) {
        let Some(sweep) = &mut state.sweep else {
            return;
        };
        let late = sweep.deadline == Time::NEVER;
        sweep.deadline = Time::NEVER;
        sweep.news = false;
        let before = state.order.clone();
        state.order.retain(|slot, index| {
            if sweep.answers.contains_key(slot) {
                state.silent.remove(slot);
                return true;
            }
            let taken = sweep.answers.values().any(|i| i == index);
            let out = !late && now.since(*state.silent.entry(*slot).or_insert(now)) >= SILENCE_TIME;
            !taken && !out && sweep.live.contains(slot)
        });
        state.order.extend(&sweep.answers);
        state
            .silent
            .retain(|slot, _| state.order.contains_key(slot));
        self.note_lowest(&state.order);
        let is_new = state.order != before;
        state.pause = if is_new {
            SHORTEST_PAUSE
        } else {
            (state.pause * 2).min(LONGEST_PAUSE)
        };
        let attaches = is_new || state.in_doubt;
        state.wanted |= attaches || !state.silent.is_empty();
        state.not_before = now + state.pause;
        // Somebody may have joined, and attached a better program, while these probes were under way. So
        // whoever attaches one sweeps once more, and who learns nothing new leaves alone what is there.
        if attaches {
            state.in_doubt = false;
            self.attach(state, receiver);
        }
    }

    /// Gives the group a program for the order as this process knows it.
    fn attach(&self, state: &mut State, receiver: BorrowedFd<'_>) {
        let own = state.order.get(&self.slot).copied();
        match program::attach(receiver, &state.order, own) {
            Ok(()) => {
                self.counters.steering_attached.add(1);
                tracing::debug!(address = %self.address, order = ?state.order, "steering");
            }
            Err(error) => {
                tracing::debug!(%error, "no steering: processes pass datagrams on instead");
                state.refused = true;
                state.wanted = false;
            }
        }
    }
}

pub(super) fn open_asker(address: LocalAddress) -> Result<Socket, OpenError> {
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
    fn answers_from_elsewhere_or_to_another_question_change_nothing() {
        let address = own_address();
        let receiver = open_receiver(address, true).unwrap();
        let counters = Arc::new(NetCounters::default());
        let fd = receiver.as_fd();
        let steering = Steering::join(address, 3, fd, counters.clone(), Time(0)).unwrap();
        let live = vec![3, 4];
        steering.start(&mut steering.state(), live, Time(1));
        let nonce = steering.state().sweep.as_ref().unwrap().nonce;
        let before = steering.state().order.clone();
        let answer = |nonce: Nonce| Answer {
            magic: ANSWER_MAGIC,
            slot: 4,
            reserved: 0,
            index: [0, 1],
            nonce,
        };
        let to = steering.asker.local_addr().unwrap();
        let stranger = open_asker(address).unwrap();
        stranger.send_to(answer(nonce).as_bytes(), &to).unwrap();
        let wrong = nonce.map(|byte| !byte);
        receiver.send_to(answer(wrong).as_bytes(), &to).unwrap();
        receiver.send_to(b"nonsense", &to).unwrap();
        receiver.send_to(&[0; 500], &to).unwrap();
        steering.take_answers(fd, Time(2)).unwrap();
        assert_eq!(counters.probes_rejected.get(), 4);
        assert!(steering.state().sweep.as_ref().unwrap().answers.is_empty());
        assert_eq!(steering.state().order, before);
        // The right one counts.
        receiver.send_to(answer(nonce).as_bytes(), &to).unwrap();
        steering.take_answers(fd, Time(3)).unwrap();
        steering.on_time(Time(u64::MAX), fd);
        assert_eq!(steering.state().order.get(&4), Some(&1));
    }

    #[test]
    fn a_sweep_that_tells_nothing_new_leaves_a_better_program_alone() {
        let address = own_address();
        let sockets = [(); 2].map(|()| open_receiver(address, true).unwrap());
        let counters = Arc::new(NetCounters::default());
        let [first, second] = [(&sockets[0], 3), (&sockets[1], 9)].map(|(socket, slot)| {
            Steering::join(address, slot, socket.as_fd(), counters.clone(), Time(0)).unwrap()
        });
        let fd = sockets[0].as_fd();
        // The first one's sweep began before the second came, so only its own socket has answered.
        for now in [1, 2] {
            let mut state = first.state();
            first.start(&mut state, vec![3, 9], Time(now));
            state.sweep.as_mut().unwrap().answers = Order::from([(3, 0)]);
            if now == 2 {
                // The second one has learnt the whole order meanwhile.
                let whole = Order::from([(3, 0), (9, 1)]);
                program::attach(sockets[1].as_fd(), &whole, Some(1)).unwrap();
            }
            first.conclude(&mut state, fd, Time(now));
        }
        assert!(!first.state().wanted);
        let packet = [4, 0, 0, 0, 0, 9, 0, 7, 0, 0, 0, 0, 0x55];
        let to = address.with_port(ROCE_PORT).into();
        second.asker.send_to(&packet, &to).unwrap();
        let mut room = [std::mem::MaybeUninit::uninit(); 64];
        let is_there = |len: io::Result<usize>| len.is_ok_and(|len| len == packet.len());
        let found = std::iter::from_fn(|| sockets[1].recv(&mut room).ok().map(Ok));
        assert!(found.into_iter().any(is_there));
        // Who was given a datagram of another does attach what it knows, new or not.
        let mut state = first.state();
        state.in_doubt = true;
        first.start(&mut state, vec![3, 9], Time(3));
        state.sweep.as_mut().unwrap().answers = Order::from([(3, 0)]);
        let before = counters.steering_attached.get();
        first.conclude(&mut state, fd, Time(3));
        assert!(state.wanted && counters.steering_attached.get() > before);
    }

    #[test]
    fn who_is_silent_for_long_is_out() {
        let address = own_address();
        let receiver = open_receiver(address, true).unwrap();
        let fd = receiver.as_fd();
        let counters = Arc::new(NetCounters::default());
        let steering = Steering::join(address, 3, fd, counters, Time(0)).unwrap();
        steering.state().order = Order::from([(3, 0), (9, 1)]);
        let first = Time(1);
        let patient = first + SILENCE_TIME / 2;
        let over = first + SILENCE_TIME;
        for (now, rest) in [(first, vec![3, 9]), (patient, vec![3, 9]), (over, vec![3])] {
            let mut state = steering.state();
            steering.start(&mut state, vec![3, 9], now);
            let sweep = state.sweep.as_mut().unwrap();
            sweep.answers = Order::from([(3, 0)]);
            steering.conclude(&mut state, fd, now);
            assert_eq!(state.order.keys().copied().collect::<Vec<_>>(), rest);
            assert!(state.wanted);
        }
    }
}
