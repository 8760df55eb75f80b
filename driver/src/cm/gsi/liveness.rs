//! Detection of peers that are gone while their connections are idle.
//!
//! A killed process sends no message, and no kernel sends one for it. Its peers detect the end:
//!
//! - A process of this host is *watched* (`net::link`): the kernel reports its end immediately. A
//!   stopped process remains a peer without limit.
//! - Any other peer is *probed* after a time of silence, by a request that it has already executed
//!   and acknowledges again. A peer is gone after the time `Options::patience` of `urxe_net` in
//!   silence, with [`UNANSWERED_PROBES`] consecutive probes unanswered. Time in which this process
//!   did not run (SIGSTOP, a debugger, a paused virtual machine) does not count as silence: a gap
//!   between two checks restarts the measurement.
//!
//! While requests are outstanding, the timers of the transport decide.
//!
//! Lock order: `state` is taken after the locks of identifiers, and before those of the engine, of
//! queue pairs and of queue pair 1.

use crate::cm::resolve;
use crate::engine;
use crate::event_queue::lock;
use crate::qp::Qp;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use urxe_net::{Link, SLOTS};
use urxe_proto::cm::{CommId, ConnectionParameters};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;

/// The time from the end of a process to the end of its connections: its last packets may still be
/// in flight.
const GRACE: Duration = Duration::from_millis(200);

/// The fractions of the timeout after which a silent peer is probed, and between two checks.
const ASKED_AFTER: u32 = 4;
const LOOKS: u32 = 12;

/// The fraction of the timeout that makes the time between two checks a gap, in which the process
/// did not run. It is three check intervals.
const GAP: u32 = 4;

/// The number of consecutive unanswered probes after which a peer is gone. One check separates two
/// probes.
const UNANSWERED_PROBES: u32 = 3;

/// The supervised connections of this process.
#[derive(Debug)]
pub(super) struct Liveness {
    slot: u8,
    /// The liveness timeout: the maximum time of silence; `None` for no limit.
    patience: Option<Duration>,
    state: Mutex<State>,
    /// The time of the next check, readable without the lock.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    connections: HashMap<CommId, Connection>,
    /// The watched processes of this host, by slot.
    processes: HashMap<u8, Link>,
}

#[derive(Debug)]
struct Connection {
    ends: Ends,
    kind: Kind,
}

/// The two queue pairs of a connection, as the two applications have named them.
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

    /// Returns the local queue pair, if it exists and is connected to the peer's.
    pub(super) fn qp(&self) -> Option<Arc<Qp>> {
        let qp = engine::get().qp(self.local)?;
        (qp.attributes().dest_qpn == self.remote).then_some(qp)
    }
}

#[derive(Debug)]
enum Kind {
    /// The process of the peer is watched.
    Watched { slot: u8 },
    /// The process of the peer has ended; the connection ends at `at`.
    Ended { at: Time },
    /// The peer is probed.
    Asked(Silence),
}

/// The silence of a peer.
#[derive(Debug)]
struct Silence {
    /// The number of packets received at the last check.
    received: u64,
    since: Time,
    /// The number of probes since then, all unanswered.
    probes: u32,
    /// The time of the last check.
    looked: Time,
}

/// The action for a silent peer.
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

    /// Restarts the measurement of silence.
    fn restart(&mut self, now: Time) {
        self.since = now;
        self.probes = 0;
    }

    /// Decides at a check, by which `received` packets have arrived in total.
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
    /// Creates the supervision for the process in `slot`.
    pub(super) fn new(slot: u8, patience: Option<Duration>) -> Self {
        Liveness {
            slot,
            patience,
            state: Mutex::default(),
            next: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// Returns when [`Liveness::look`] is due.
    pub(super) fn next_look(&self) -> Time {
        Time(self.next.load(Ordering::Acquire))
    }

    /// Starts the supervision of a connection, whose communication ID at the peer is `remote_id`.
    pub(super) fn add(&self, id: CommId, remote_id: CommId, parameters: &ConnectionParameters) {
        let Some(ends) = Ends::of(parameters) else {
            return;
        };
        let mut state = lock(&self.state);
        let slot = is_of_this_host(parameters).then_some(slot_of(remote_id));
        let slot = slot.filter(|slot| *slot < SLOTS);
        let kind = match slot {
            // A peer in this process needs no supervision: it ends together with this side.
            Some(slot) if slot == self.slot => return,
            Some(slot) if state.watch(slot) => Kind::Watched { slot },
            _ => Kind::Asked(Silence::new(urxe_net::now())),
        };
        state.connections.insert(id, Connection { ends, kind });
        self.settle(&state);
    }

    /// Checks whether watched processes have ended. Their connections end after [`GRACE`].
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

    /// Checks all connections, and forgets those for which `is_there` returns false. Returns the
    /// connections whose peers are gone.
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
    /// Watches the process in a slot; returns false if that is not possible.
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

/// Checks a silent peer, and probes it if due. Returns whether the peer is gone.
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
                // The transport already waits for an answer, or a probe is not possible.
                silence.restart(now);
            }
            false
        }
    }
}

/// Returns the slot of the process of this host that assigned a communication ID.
fn slot_of(id: CommId) -> u8 {
    id.0.to_be_bytes()[0]
}

/// Returns whether the peer's address belongs to this host.
fn is_of_this_host(parameters: &ConnectionParameters) -> bool {
    matches!(resolve::device_of_gid(parameters.remote_gid), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// Checks every 5 seconds from `from` to `to`, and sends the probes that are due. Returns the
    /// last verdict.
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
        // The process was stopped for ten minutes; earlier answers may be unread.
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
