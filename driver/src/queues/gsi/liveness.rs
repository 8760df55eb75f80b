//! Liveness monitoring: detects lost peers of idle connections.
//!
//! A killed process sends no message, and no kernel sends one for it. Its peers detect the end:
//!
//! - A process of this host is *watched* (`net::link`): the kernel reports its end immediately. A
//!   stopped process remains a peer without limit.
//! - Any other peer is *probed* after a time of silence, by a request that it has already executed
//!   and acknowledges again. A peer is lost after the time `Options::keepalive_timeout` of
//!   `urxe_net` in silence, with [`UNANSWERED_PROBES`] consecutive probes unanswered. Time in which
//!   this process did not run (SIGSTOP, a debugger, a paused virtual machine) does not count as
//!   silence: a long time between two checks restarts the measurement.
//!
//! While requests are outstanding, the timers of the transport decide.

use crate::device;
use crate::ports::WatchSet;
use crate::queues::qp::{Effects, Qp};
use crate::queues::table::QpTable;
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use urxe_net::{Link, SLOTS};
use urxe_proto::cm::{CommId, ConnectionParameters};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;

/// The time from the end of a process to the end of its connections: its last packets may still be
/// in flight.
const EXIT_GRACE: Duration = Duration::from_millis(200);

/// A peer is probed after a silence of the timeout divided by this.
const PROBE_DIVISOR: u32 = 4;
const CHECKS_PER_TIMEOUT: u32 = 12;

/// A time between two checks that exceeds the timeout divided by this, which is three check
/// intervals, counts as a suspension of the process.
const SUSPENSION_DIVISOR: u32 = 4;

/// The number of consecutive unanswered probes after which a peer is lost. One check separates two
/// probes.
const UNANSWERED_PROBES: u32 = 3;

/// The monitored connections of this process.
#[derive(Debug)]
pub(super) struct Liveness {
    slot: u8,
    qps: Arc<QpTable>,
    watch: Arc<WatchSet>,
    /// The liveness timeout: the maximum time of silence; `None` for no limit.
    timeout: Option<Duration>,
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
    pub(super) fn qp(&self, qps: &QpTable) -> Option<Arc<Qp>> {
        let qp = qps.find(self.local)?;
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
    Probed(IdleTimer),
}

/// The silence of a peer.
#[derive(Debug)]
struct IdleTimer {
    /// The number of packets received at the last check.
    received: u64,
    since: Time,
    /// The number of probes since then, all unanswered.
    probes: u32,
    /// The time of the last check.
    checked: Time,
}

/// The action for a silent peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Wait,
    Probe,
    Gone,
}

impl IdleTimer {
    fn new(now: Time) -> Self {
        IdleTimer {
            received: 0,
            since: now,
            probes: 0,
            checked: now,
        }
    }

    /// Restarts the measurement of silence.
    fn restart(&mut self, now: Time) {
        self.since = now;
        self.probes = 0;
    }

    /// Evaluates a check. `received` is the number of packets received in total.
    fn evaluate(&mut self, now: Time, received: u64, timeout: Duration) -> Verdict {
        let was_suspended = now.since(self.checked) > timeout / SUSPENSION_DIVISOR;
        if was_suspended || received != self.received {
            self.restart(now);
        }
        self.received = received;
        self.checked = now;
        match now.since(self.since) {
            silent if silent >= timeout && self.probes >= UNANSWERED_PROBES => Verdict::Gone,
            silent if silent >= timeout / PROBE_DIVISOR => Verdict::Probe,
            _ => Verdict::Wait,
        }
    }
}

/// A connection whose peer is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub id: CommId,
    pub ends: Ends,
}

impl Liveness {
    /// Creates the monitor of the process in `slot`.
    pub(super) fn new(
        slot: u8,
        timeout: Option<Duration>,
        qps: Arc<QpTable>,
        watch: Arc<WatchSet>,
    ) -> Self {
        Liveness {
            slot,
            qps,
            watch,
            timeout,
            state: Mutex::default(),
            next: AtomicU64::new(Time::NEVER.0),
        }
    }

    /// Returns when [`Liveness::check`] is due.
    pub(super) fn next_check(&self) -> Time {
        Time(self.next.load(Ordering::Acquire))
    }

    /// Starts to monitor the peer of a connection, whose communication ID at the peer is
    /// `remote_id`.
    pub(super) fn add(&self, id: CommId, remote_id: CommId, parameters: &ConnectionParameters) {
        let Some(ends) = Ends::of(parameters) else {
            return;
        };
        let mut state = lock(&self.state);
        let slot = is_of_this_host(parameters).then_some(slot_of(remote_id));
        let slot = slot.filter(|slot| *slot < SLOTS);
        let kind = match slot {
            // A peer in this process is not monitored: it ends together with this side.
            Some(slot) if slot == self.slot => return,
            Some(slot) if state.watch(slot, &self.watch) => Kind::Watched { slot },
            _ => Kind::Probed(IdleTimer::new(urxe_net::now())),
        };
        state.connections.insert(id, Connection { ends, kind });
        self.update_next_check(&state);
    }

    /// Checks whether watched processes have ended. Their connections end after [`EXIT_GRACE`].
    pub(super) fn check_exits(&self) {
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
                connection.kind = Kind::Ended {
                    at: now + EXIT_GRACE,
                };
            }
        }
        self.update_next_check(&state);
    }

    /// Checks all connections, and removes those for which `is_established` returns false. Returns
    /// the connections whose peers are lost.
    ///
    /// Sends the probes that are due, and adds the effects on their queue pairs to `effects`.
    pub(super) fn check(
        &self,
        now: Time,
        is_established: impl Fn(CommId) -> bool,
        effects: &mut Vec<(Arc<Qp>, Effects)>,
    ) -> Vec<Lost> {
        let mut state = lock(&self.state);
        let State {
            connections,
            processes,
        } = &mut *state;
        connections.retain(|id, _| is_established(*id));
        let mut lost = Vec::new();
        for (id, connection) in connections.iter_mut() {
            let is_gone = match &mut connection.kind {
                Kind::Watched { .. } => false,
                Kind::Ended { at } => *at <= now,
                Kind::Probed(silence) => self.is_gone(silence, connection.ends, now, effects),
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
        self.update_next_check(&state);
        lost
    }

    /// Checks a silent peer, and probes it if due. Returns whether the peer is lost.
    fn is_gone(
        &self,
        silence: &mut IdleTimer,
        ends: Ends,
        now: Time,
        effects: &mut Vec<(Arc<Qp>, Effects)>,
    ) -> bool {
        let Some(timeout) = self.timeout else {
            return false;
        };
        let Some(qp) = ends.qp(&self.qps) else {
            silence.restart(now);
            silence.checked = now;
            return false;
        };
        match silence.evaluate(now, qp.counters().received_packets, timeout) {
            Verdict::Wait => false,
            Verdict::Gone => true,
            Verdict::Probe => {
                let (probed, wanted) = qp.probe();
                effects.push((qp, wanted));
                if probed {
                    silence.probes += 1;
                } else {
                    // The transport already waits for an answer, or a probe is not possible.
                    silence.restart(now);
                }
                false
            }
        }
    }

    fn update_next_check(&self, state: &State) {
        let when = |connection: &Connection| match &connection.kind {
            Kind::Watched { .. } => Time::NEVER,
            Kind::Ended { at } => *at,
            Kind::Probed(silence) => self.timeout.map_or(Time::NEVER, |timeout| {
                silence.checked + timeout / CHECKS_PER_TIMEOUT
            }),
        };
        let next = state.connections.values().map(when);
        let next = next.fold(Time::NEVER, Time::min);
        self.next.store(next.0, Ordering::Release);
    }
}

impl State {
    /// Watches the process in a slot; returns false if that is not possible.
    fn watch(&mut self, slot: u8, watched: &WatchSet) -> bool {
        if self.processes.contains_key(&slot) {
            return true;
        }
        let is_watched = urxe_net::watch(slot).and_then(|link| {
            let Some(link) = link else {
                return Ok(false);
            };
            watched.watch_end(link.fd())?;
            self.processes.insert(slot, link);
            Ok(true)
        });
        is_watched.unwrap_or_else(|error| {
            tracing::warn!(%error, slot, "cannot watch the process of a peer");
            false
        })
    }
}

/// Returns the slot of the process of this host that assigned a communication ID.
fn slot_of(id: CommId) -> u8 {
    id.0.to_be_bytes()[0]
}

/// Returns whether the peer's address belongs to this host.
fn is_of_this_host(parameters: &ConnectionParameters) -> bool {
    device::has_address(parameters.remote_gid.to_ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// Checks every 5 seconds from `from` to `to`, and sends the probes that are due. Returns the
    /// last verdict.
    fn check_every_5_s(silence: &mut IdleTimer, from: u64, to: u64, received: u64) -> Verdict {
        let mut verdict = Verdict::Wait;
        for now in (from..=to).step_by(5) {
            verdict = silence.evaluate(at(now), received, TIMEOUT);
            silence.probes += u32::from(verdict == Verdict::Probe);
        }
        verdict
    }

    #[test]
    fn a_silent_peer_is_probed_and_then_gone() {
        let mut silence = IdleTimer::new(at(0));
        assert_eq!(check_every_5_s(&mut silence, 0, 0, 7), Verdict::Wait);
        assert_eq!(check_every_5_s(&mut silence, 5, 10, 7), Verdict::Wait);
        assert_eq!(check_every_5_s(&mut silence, 15, 15, 7), Verdict::Probe);
        assert_eq!(check_every_5_s(&mut silence, 20, 55, 7), Verdict::Probe);
        assert_eq!(check_every_5_s(&mut silence, 60, 60, 7), Verdict::Gone);
    }

    #[test]
    fn one_answer_restarts_the_silence() {
        let mut silence = IdleTimer::new(at(0));
        assert_eq!(check_every_5_s(&mut silence, 0, 55, 1), Verdict::Probe);
        assert_eq!(check_every_5_s(&mut silence, 60, 60, 2), Verdict::Wait);
        assert_eq!(check_every_5_s(&mut silence, 65, 115, 2), Verdict::Probe);
        assert_eq!(check_every_5_s(&mut silence, 120, 120, 2), Verdict::Gone);
    }

    #[test]
    fn time_in_which_this_process_did_not_run_does_not_count() {
        let mut silence = IdleTimer::new(at(0));
        assert_eq!(check_every_5_s(&mut silence, 0, 50, 1), Verdict::Probe);
        // The process was stopped for ten minutes; earlier answers may be unread.
        assert_eq!(check_every_5_s(&mut silence, 650, 650, 1), Verdict::Wait);
        assert_eq!(check_every_5_s(&mut silence, 655, 660, 1), Verdict::Wait);
        assert_eq!(check_every_5_s(&mut silence, 665, 705, 1), Verdict::Probe);
        assert_eq!(check_every_5_s(&mut silence, 710, 710, 1), Verdict::Gone);
    }

    #[test]
    fn a_peer_is_gone_only_after_several_unanswered_probes() {
        let mut silence = IdleTimer::new(at(0));
        for now in (0..=300).step_by(5) {
            assert_ne!(silence.evaluate(at(now), 1, TIMEOUT), Verdict::Gone);
        }
        silence.probes = UNANSWERED_PROBES;
        assert_eq!(silence.evaluate(at(305), 1, TIMEOUT), Verdict::Gone);
    }
}
