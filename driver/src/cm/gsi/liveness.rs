//! Whether the peers of connections are still there, when nothing comes from them.
//!
//! A process that is killed says nothing, and no kernel speaks for it. So its peers look themselves:
//!
//! - A process of this host is *watched* (`net::link`): the kernel tells its end at once, and a
//!   process that
//!   is merely stopped stays a peer for as long as it likes.
//! - Any other peer that has been silent for a while is *asked*, by a request that it has had already and
//!   acknowledges again. A peer is gone when it has been silent for [`net::Options::patience`] and
//!   several probes in a row are unanswered. Time in which this process did not run (SIGSTOP, a
//!   debugger, a paused virtual machine) does not count as the peer's silence: a gap between two
//!   looks starts the silence anew.
//!
//! Where something is under way, the transport's own timers decide.
//!
//! The lock of `state` is taken after those of identifiers, and before those of the engine, of queue pairs
//! and of queue pair 1.

use crate::cm::resolve;
use crate::engine;
use crate::event_queue::lock;
use crate::qp::Qp;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use urxe_net::{Link, SLOTS};
use urxe_proto::cm::{CommId, ConnectionParameters};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;

/// How long after the end of a process its connections end: what it said last may still be under way.
const GRACE: Duration = Duration::from_millis(200);

/// A peer is asked when it was silent for this part of the patience, and looked at this often.
const ASKED_AFTER: u32 = 4;
const LOOKS: u32 = 12;

/// A longer time between two looks than this part of the patience is a gap in which the process did
/// not run. Looks are due three times as often.
const GAP: u32 = 4;

/// How many probes in a row must be unanswered before a peer is gone. Between two of them is one
/// look.
const UNANSWERED_PROBES: u32 = 3;

/// The connections of this process whose peers are looked at.
#[derive(Debug)]
pub(super) struct Liveness {
    slot: u8,
    /// For how long a peer may be silent, if not for ever.
    patience: Option<Duration>,
    state: Mutex<State>,
    /// When to look next, to be read without the lock.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    connections: HashMap<CommId, Connection>,
    /// The processes of this host that peers are in, by their slots.
    processes: HashMap<u8, Link>,
}

#[derive(Debug)]
struct Connection {
    ends: Ends,
    kind: Kind,
}

/// The two queue pairs of a connection, by what the two programs said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    local: Qpn,
    remote: Qpn,
}

impl Ends {
    fn of(parameters: &ConnectionParameters) -> Option<Self> {
        Some(Ends {
            local: parameters.local_qpn?,
            remote: parameters.remote_qpn?,
        })
    }

    /// Our queue pair, if it is one, and connected to the peer's.
    pub(super) fn qp(&self) -> Option<Arc<Qp>> {
        let qp = engine::get().qp(self.local)?;
        (qp.attributes().dest_qpn == self.remote).then_some(qp)
    }
}

#[derive(Debug)]
enum Kind {
    /// The peer's process is watched.
    Watched { slot: u8 },
    /// The peer's process has ended, and then so has the connection.
    Ended { at: Time },
    /// The peer is asked.
    Asked(Silence),
}

/// How long a peer has been silent.
#[derive(Debug)]
struct Silence {
    /// How many packets had come.
    received: u64,
    since: Time,
    /// Probes since then, of which none is answered.
    probes: u32,
    /// When it was looked at last.
    looked: Time,
}

/// What to do about a silent peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Wait,
    Ask,
    Gone,
}

impl Silence {
    fn new(now: Time) -> Self {
        Silence {
            received: 0,
            since: now,
            probes: 0,
            looked: now,
        }
    }

    /// The silence starts anew.
    fn restart(&mut self, now: Time) {
        self.since = now;
        self.probes = 0;
    }

    /// So many packets have come by now.
    fn judge(&mut self, now: Time, received: u64, patience: Duration) -> Verdict {
        let did_not_run = now.since(self.looked) > patience / GAP;
        if did_not_run || received != self.received {
            self.restart(now);
        }
        self.received = received;
        self.looked = now;
        match now.since(self.since) {
            silent if silent >= patience && self.probes >= UNANSWERED_PROBES => Verdict::Gone,
            silent if silent >= patience / ASKED_AFTER => Verdict::Ask,
            _ => Verdict::Wait,
        }
    }
}

/// A connection whose peer is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub id: CommId,
    pub ends: Ends,
}

impl Liveness {
    /// That of the process in `slot`.
    pub(super) fn new(slot: u8, patience: Option<Duration>) -> Self {
        Liveness {
            slot,
            patience,
            state: Mutex::default(),
            next: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// When [`Liveness::look`] has something to do.
    pub(super) fn next_look(&self) -> Time {
        Time(self.next.load(Ordering::Acquire))
    }

    /// A connection is there, with the peer's `remote_id`.
    pub(super) fn add(&self, id: CommId, remote_id: CommId, parameters: &ConnectionParameters) {
        let Some(ends) = Ends::of(parameters) else {
            return;
        };
        let mut state = lock(&self.state);
        let slot = is_of_this_host(parameters).then_some(slot_of(remote_id));
        let slot = slot.filter(|slot| *slot < SLOTS);
        let kind = match slot {
            // Who ends with us need not be watched.
            Some(slot) if slot == self.slot => return,
            Some(slot) if state.watch(slot) => Kind::Watched { slot },
            _ => Kind::Asked(Silence::new(urxe_net::now())),
        };
        state.connections.insert(id, Connection { ends, kind });
        self.settle(&state);
    }

    /// Looks whether processes have ended. The connections of those that have end a little later.
    pub(super) fn look_for_ends(&self) {
        let mut state = lock(&self.state);
        let State {
            connections,
            processes,
        } = &mut *state;
        let ended: Vec<u8> = processes
            .extract_if(|_, watch| watch.has_ended())
            .map(|(slot, _)| slot)
            .collect();
        if ended.is_empty() {
            return;
        }
        let now = urxe_net::now();
        for connection in connections.values_mut() {
            if matches!(connection.kind, Kind::Watched { slot } if ended.contains(&slot)) {
                connection.kind = Kind::Ended { at: now + GRACE };
            }
        }
        self.settle(&state);
    }

    /// Looks at all connections, of which some have ended by themselves. Returns those whose peers are
    /// gone.
    pub(super) fn look(&self, now: Time, is_there: impl Fn(CommId) -> bool) -> Vec<Lost> {
        let mut state = lock(&self.state);
        let State {
            connections,
            processes,
        } = &mut *state;
        connections.retain(|id, _| is_there(*id));
        let mut lost = Vec::new();
        for (id, connection) in connections.iter_mut() {
            let is_gone = match &mut connection.kind {
                Kind::Watched { .. } => false,
                Kind::Ended { at } => *at <= now,
                Kind::Asked(silence) => is_gone(silence, connection.ends, now, self.patience),
            };
            if is_gone {
                let (id, ends) = (*id, connection.ends);
                lost.push(Lost { id, ends });
            }
        }
        for lost in &lost {
            connections.remove(&lost.id);
        }
        let is_watched = |slot: &u8| {
            let by = |c: &Connection| matches!(c.kind, Kind::Watched { slot: s } if s == *slot);
            connections.values().any(by)
        };
        processes.retain(|slot, _| is_watched(slot));
        self.settle(&state);
        lost
    }

    fn settle(&self, state: &State) {
        let when = |connection: &Connection| match &connection.kind {
            Kind::Watched { .. } => Time::NEVER,
            Kind::Ended { at } => *at,
            Kind::Asked(silence) => self
                .patience
                .map_or(Time::NEVER, |patience| silence.looked + patience / LOOKS),
        };
        let next = state.connections.values().map(when);
        let next = next.fold(Time::NEVER, Time::min);
        self.next.store(next.0, Ordering::Release);
    }
}

impl State {
    /// Watches the process in a slot. False when that cannot be done.
    fn watch(&mut self, slot: u8) -> bool {
        if self.processes.contains_key(&slot) {
            return true;
        }
        let watched = urxe_net::watch(slot).and_then(|watch| {
            let Some(watch) = watch else {
                return Ok(false);
            };
            engine::get().watch_end(watch.fd())?;
            self.processes.insert(slot, watch);
            Ok(true)
        });
        watched.unwrap_or_else(|error| {
            tracing::warn!(%error, slot, "cannot watch the process of a peer");
            false
        })
    }
}

/// Asks a silent peer, and says whether it has been silent for too long.
fn is_gone(silence: &mut Silence, ends: Ends, now: Time, patience: Option<Duration>) -> bool {
    let Some(patience) = patience else {
        return false;
    };
    let Some(qp) = ends.qp() else {
        silence.restart(now);
        silence.looked = now;
        return false;
    };
    match silence.judge(now, qp.counters().received_packets, patience) {
        Verdict::Wait => false,
        Verdict::Gone => true,
        Verdict::Ask => {
            if qp.probe() {
                silence.probes += 1;
            } else {
                // The transport waits for an answer, or nobody can be asked.
                silence.restart(now);
            }
            false
        }
    }
}

/// The slot of the process of this host that gave out a communication ID.
fn slot_of(id: CommId) -> u8 {
    id.0.to_be_bytes()[0]
}

/// Whether the peer is at an address of this host.
fn is_of_this_host(parameters: &ConnectionParameters) -> bool {
    resolve::device_of(SocketAddr::new(parameters.remote_gid.to_ip(), 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// Looks every 5 seconds from `from` to `to`, and sends the probes. Returns what was found at
    /// the end.
    fn look(silence: &mut Silence, from: u64, to: u64, received: u64) -> Verdict {
        let mut verdict = Verdict::Wait;
        for now in (from..=to).step_by(5) {
            verdict = silence.judge(at(now), received, PATIENCE);
            silence.probes += u32::from(verdict == Verdict::Ask);
        }
        verdict
    }

    #[test]
    fn who_is_silent_is_asked_and_who_goes_on_being_silent_is_gone() {
        let mut silence = Silence::new(at(0));
        assert_eq!(look(&mut silence, 0, 0, 7), Verdict::Wait);
        assert_eq!(look(&mut silence, 5, 10, 7), Verdict::Wait);
        assert_eq!(look(&mut silence, 15, 15, 7), Verdict::Ask);
        assert_eq!(look(&mut silence, 20, 55, 7), Verdict::Ask);
        assert_eq!(look(&mut silence, 60, 60, 7), Verdict::Gone);
    }

    #[test]
    fn who_answers_once_is_there() {
        let mut silence = Silence::new(at(0));
        assert_eq!(look(&mut silence, 0, 55, 1), Verdict::Ask);
        assert_eq!(look(&mut silence, 60, 60, 2), Verdict::Wait);
        assert_eq!(look(&mut silence, 65, 115, 2), Verdict::Ask);
        assert_eq!(look(&mut silence, 120, 120, 2), Verdict::Gone);
    }

    #[test]
    fn time_in_which_this_process_did_not_run_is_no_silence() {
        let mut silence = Silence::new(at(0));
        assert_eq!(look(&mut silence, 0, 50, 1), Verdict::Ask);
        // Stopped for ten minutes; the answers of before may be unread.
        assert_eq!(look(&mut silence, 650, 650, 1), Verdict::Wait);
        assert_eq!(look(&mut silence, 655, 660, 1), Verdict::Wait);
        assert_eq!(look(&mut silence, 665, 705, 1), Verdict::Ask);
        assert_eq!(look(&mut silence, 710, 710, 1), Verdict::Gone);
    }

    #[test]
    fn a_peer_that_was_not_asked_several_times_is_not_gone() {
        let mut silence = Silence::new(at(0));
        for now in (0..=300).step_by(5) {
            assert_ne!(silence.judge(at(now), 1, PATIENCE), Verdict::Gone);
        }
        silence.probes = UNANSWERED_PROBES;
        assert_eq!(silence.judge(at(305), 1, PATIENCE), Verdict::Gone);
    }
}
