//! The hosts, the network between them, and the invariants over all of them.

use super::host::{Host, Step, gid};
use super::record::{Progress, Role};
use super::stats::Stats;
use crate::limits::Limits;
use crate::rng::Rng;
use rand::{RngExt, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use urxe_proto::cm::wire::Mad;
use urxe_proto::cm::{Address, CommId, Event};
use urxe_proto::ids::Qpn;
use urxe_proto::time::Time;

/// The maximum time in flight of a message: less than the packet lifetime that the hosts assume,
/// which is 268 ms.
const MAX_DELAY: Duration = Duration::from_millis(250);
/// The maximum length of a run, in virtual time.
const MAX_RUN_TIME: Duration = Duration::from_secs(3600);
/// The time within which attempts begin.
const ATTEMPT_PERIOD: Duration = Duration::from_secs(60);

/// A scheduled event.
#[derive(Debug)]
enum Action {
    /// A MAD arrives.
    Arrive {
        to: usize,
        address: Address,
        mad: Box<Mad>,
    },
    /// A program acts, unless its host has crashed since.
    Act {
        host: usize,
        incarnation: u32,
        step: Step,
    },
    /// A host loses all its state. It restarts, or stays off.
    Crash { host: usize, is_off: bool },
}

struct Queued {
    when: Time,
    order: u64,
    action: Action,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.when, self.order).cmp(&(other.when, other.order))
    }
}

struct World {
    rng: Rng,
    hosts: Vec<Host>,
    queue: BinaryHeap<Reverse<Queued>>,
    order: u64,
    now: Time,
    /// The percentages of messages that are lost, and that arrive twice.
    loss: u32,
    duplication: u32,
    crashes: bool,
    stats: Stats,
    trace: bool,
}

/// Runs `seed` to its end; it determines all random decisions.
///
/// # Panics
/// When an invariant is violated.
pub fn run(seed: u64, limits: &Limits, trace: bool) -> Stats {
    let mut rng = Rng::seed_from_u64(seed);
    let hosts = rng.random_range(2..=4);
    let mut world = World {
        hosts: (0..hosts)
            .map(|index| Host::new(index, Rng::seed_from_u64(rng.random())))
            .collect(),
        queue: BinaryHeap::new(),
        order: 0,
        now: Time(0),
        loss: rng.random_range(0..=20),
        duplication: rng.random_range(0..=20),
        crashes: rng.random_range(0..2) == 0,
        stats: Stats::default(),
        trace,
        rng,
    };
    world.plan(limits.ops);
    while world.step() {}
    world.check_end();
    world.stats
}

impl World {
    /// Schedules the attempts and the crashes.
    fn plan(&mut self, most: usize) {
        for _ in 0..self.rng.random_range(1..40).min(most) {
            let host = self.rng.random_range(0..self.hosts.len());
            let step = match self.rng.random_range(0..5) {
                0 => Step::Resolve,
                _ => Step::Connect,
            };
            let when = Time(0) + ATTEMPT_PERIOD.mul_f64(self.rng.random());
            let incarnation = u32::MAX;
            self.schedule(
                when,
                Action::Act {
                    host,
                    incarnation,
                    step,
                },
            );
        }
        if self.crashes {
            for _ in 0..self.rng.random_range(1..4) {
                let host = self.rng.random_range(0..self.hosts.len());
                let when = Time(0) + ATTEMPT_PERIOD.mul_f64(self.rng.random());
                let is_off = self.rng.random_range(0..3) == 0;
                self.schedule(when, Action::Crash { host, is_off });
            }
        }
    }

    fn schedule(&mut self, when: Time, action: Action) {
        self.order += 1;
        let order = self.order;
        self.queue.push(Reverse(Queued {
            when,
            order,
            action,
        }));
    }

    /// Processes the next event. Returns false when there is none.
    fn step(&mut self) -> bool {
        let queued = self.queue.peek().map_or(Time::NEVER, |Reverse(q)| q.when);
        let timers = self.hosts.iter().map(|host| host.manager.deadline());
        let timer = timers.min().unwrap_or(Time::NEVER);
        let when = queued.min(timer);
        if when == Time::NEVER {
            return false;
        }
        assert!(when.since(Time(0)) < MAX_RUN_TIME, "the run does not end");
        assert!(when >= self.now, "time goes back");
        self.now = when;
        if timer <= queued {
            for host in &mut self.hosts {
                host.manager.handle_timeout(when);
            }
        } else if let Some(Reverse(queued)) = self.queue.pop() {
            self.perform(queued.action);
        }
        self.collect();
        true
    }

    fn perform(&mut self, action: Action) {
        if self.trace && !matches!(action, Action::Arrive { .. }) {
            eprintln!("{:?} {action:?}", self.now.since(Time(0)));
        }
        match action {
            Action::Arrive { to, .. } if self.hosts[to].is_off => {}
            Action::Arrive { to, address, mad } => {
                self.stats.delivered += 1;
                self.hosts[to]
                    .manager
                    .handle_mad(self.now, address, &mad[..]);
            }
            Action::Act {
                host,
                incarnation,
                step,
            } => {
                let hosts = self.hosts.len();
                let at = &mut self.hosts[host];
                let is_other_incarnation = incarnation != u32::MAX && incarnation != at.incarnation;
                if at.is_off || is_other_incarnation {
                    return;
                }
                let next = at.act(step, self.now, hosts, &mut self.rng, &mut self.stats);
                self.schedule_steps(host, next);
            }
            Action::Crash { host, is_off } => {
                self.stats.crashes += 1;
                self.hosts[host].is_off |= is_off;
                let ids = Rng::seed_from_u64(self.rng.random());
                self.count(host);
                self.hosts[host].crash(ids);
            }
        }
    }

    fn schedule_steps(&mut self, host: usize, steps: Vec<(Duration, Step)>) {
        let incarnation = self.hosts[host].incarnation;
        for (after, step) in steps {
            let when = self.now + after;
            self.schedule(
                when,
                Action::Act {
                    host,
                    incarnation,
                    step,
                },
            );
        }
    }

    /// Sends the messages and handles the events that the managers produced.
    fn collect(&mut self) {
        for index in 0..self.hosts.len() {
            while let Some(transmit) = self.hosts[index].manager.poll_transmit() {
                let to = (0..self.hosts.len()).find(|to| gid(*to) == transmit.address.remote);
                assert_eq!(transmit.address.local, gid(index));
                assert_eq!(transmit.address.remote_qpn, Qpn::GSI);
                self.transmit(to.expect("a host"), &transmit.address, &transmit.mad);
            }
            while let Some(event) = self.hosts[index].manager.poll_event() {
                if self.trace {
                    eprintln!("{:?} {index}: {event:?}", self.now.since(Time(0)));
                }
                self.check(index, &event);
                let host = &mut self.hosts[index];
                let steps = host.on_event(&event, &mut self.rng, &mut self.stats);
                self.schedule_steps(index, steps);
            }
        }
    }

    /// Delivers a message twice, once or never, with random delays.
    fn transmit(&mut self, to: usize, address: &Address, mad: &Mad) {
        let mut times = u32::from(self.rng.random_range(0..100) >= self.loss);
        times += u32::from(self.rng.random_range(0..100) < self.duplication);
        for _ in 0..times {
            let when = self.now + MAX_DELAY.mul_f64(self.rng.random());
            let address = Address {
                local: address.remote,
                remote: address.local,
                ..*address
            };
            let mad = Box::new(*mad);
            self.schedule(when, Action::Arrive { to, address, mad });
        }
    }

    /// Checks that an event of one side agrees with the state of the other, unless a host crashed.
    fn check(&self, index: usize, event: &Event) {
        let host = &self.hosts[index];
        let Some(record) = host.records.get(&event.id()) else {
            return;
        };
        match event {
            Event::Ready { id, .. } => self.check_agreement(index, *id),
            Event::Rejected { id, reason, .. } if record.role == Role::Client => {
                let consumer = urxe_proto::cm::wire::RejectReason::CONSUMER;
                if *reason == consumer && !self.crashes {
                    let records = self.hosts.iter().flat_map(|host| host.records.values());
                    assert!(
                        { records }.any(|r| r.peer == Some(*id) && (r.rejected || r.abandoned)),
                        "nobody rejected {id}"
                    );
                }
            }
            Event::TimedOut { .. } if record.role != Role::Requester => {
                assert!(self.crashes, "nobody crashed, and {event:?}");
            }
            _ => {}
        }
    }

    /// Checks that when the server's connection is established, the client of this connection said
    /// so, and both have the same parameters.
    fn check_agreement(&self, index: usize, id: CommId) {
        let record = &self.hosts[index].records[&id];
        let client = record.peer.expect("a server knows its peer");
        let at = self.hosts.iter().find_map(|host| {
            let record = host.records.get(&client)?;
            Some((host, record))
        });
        let Some((host, peer)) = at else {
            assert!(self.crashes, "the client does not exist");
            return;
        };
        assert!(peer.ready && peer.peer == Some(id));
        let (Some(mine), Some(theirs)) =
            (self.hosts[index].parameters(id), host.parameters(client))
        else {
            return;
        };
        assert_eq!(mine.local_qpn, theirs.remote_qpn);
        assert_eq!(mine.remote_qpn, theirs.local_qpn);
        assert_eq!((mine.sq_psn, mine.rq_psn), (theirs.rq_psn, theirs.sq_psn));
        assert_eq!(mine.path_mtu, theirs.path_mtu);
        assert_eq!(mine.initiator_depth, theirs.responder_resources);
        assert_eq!(mine.responder_resources, theirs.initiator_depth);
    }

    fn count(&mut self, host: usize) {
        let counters = self.hosts[host].manager.counters();
        self.stats.duplicates += counters.duplicates;
        self.stats.retransmitted += counters.retransmitted;
        self.stats.awaiting_backlog += counters.awaiting_backlog;
        assert_eq!(counters.malformed, 0);
    }

    /// Checks at the end of a run that every attempt has ended, and that no state remains.
    fn check_end(&mut self) {
        for index in 0..self.hosts.len() {
            self.count(index);
            let host = &self.hosts[index];
            for (id, record) in &host.records {
                let ended = record.progress == Progress::End || record.abandoned;
                assert!(ended, "host {index}: {id} has no end: {record:?}");
            }
            assert!(host.manager.is_empty(), "host {index}: {:?}", host.manager);
        }
    }
}
