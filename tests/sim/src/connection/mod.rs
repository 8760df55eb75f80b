//! Two endpoints of a reliable connection and the links between them.

mod attempts;
mod endpoint;
mod plan;

use crate::limits::Limits;
use crate::link::{Faults, Link, faults};
use crate::rng::{Rng, ScriptedRng};
use attempts::Attempts;
use endpoint::{Endpoint, EndpointConfig, gid};
use plan::{Plan, PlanConfig};
use rand::{RngExt, SeedableRng};
use std::rc::Rc;
use std::time::Duration;
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::queue::SendQueueSize;
use urxe_proto::rc::Counters;
use urxe_proto::rc::congestion::{Algorithm, WindowLimits};
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;

/// The maximum length of a run, in virtual time.
const MAX_RUN_TIME: Duration = Duration::from_secs(600);
/// The maximum number of events in a run.
const MAX_EVENTS: u64 = 3_000_000;

/// The counts of a run, or of many.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stats {
    /// Packets delivered.
    pub delivered: u64,
    /// Packets dropped for a wrong ICRC.
    pub bad_icrc: u64,
    /// Damaged packets.
    pub damaged: u64,
    /// Damaged packets with a correct ICRC.
    pub undetected: u64,
    /// Work requests completed.
    pub operations: u64,
    /// Work requests completed over extended reliable connections.
    pub xrc_operations: u64,
    /// READs that returned versions of a second writer.
    pub versions_read: u64,
    /// Repeated READ requests for the middle of an earlier one that a responder dropped.
    pub partial_reads_dropped: u64,
    /// Send queues drained.
    pub drains: u64,
    /// Packets retransmitted.
    pub retransmitted: u64,
    /// Duplicate requests received.
    pub duplicates: u64,
    /// PSN sequence NAKs received.
    pub sequence_naks: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// READs and atomics whose response was lost.
    pub responses_lost: u64,
    /// CNPs received.
    pub notifications: u64,
    /// Requests executed from the out-of-order queue.
    pub out_of_order_executed: u64,
    /// Probes sent.
    pub probes: u64,
    /// Timeouts that caused a retransmission.
    pub timeouts: u64,
    /// Connections that ended because the links lost every attempt of a request, or its answer.
    pub retries_exhausted: u64,
    /// Partitions of links.
    pub partitions: u64,
    /// The virtual time of the run.
    pub time: Duration,
}

impl crate::seeds::Stats for Stats {
    fn add(&mut self, other: &Stats) {
        self.delivered += other.delivered;
        self.bad_icrc += other.bad_icrc;
        self.damaged += other.damaged;
        self.undetected += other.undetected;
        self.operations += other.operations;
        self.xrc_operations += other.xrc_operations;
        self.versions_read += other.versions_read;
        self.partial_reads_dropped += other.partial_reads_dropped;
        self.drains += other.drains;
        self.retransmitted += other.retransmitted;
        self.duplicates += other.duplicates;
        self.sequence_naks += other.sequence_naks;
        self.rnr_naks += other.rnr_naks;
        self.responses_lost += other.responses_lost;
        self.notifications += other.notifications;
        self.out_of_order_executed += other.out_of_order_executed;
        self.probes += other.probes;
        self.timeouts += other.timeouts;
        self.retries_exhausted += other.retries_exhausted;
        self.partitions += other.partitions;
        self.time += other.time;
    }
}

impl Stats {
    fn count(&mut self, counters: &Counters) {
        self.retransmitted += counters.retransmitted;
        self.duplicates += counters.duplicates;
        self.sequence_naks += counters.sequence_naks_received;
        self.rnr_naks += counters.rnr_naks_received;
        self.responses_lost += counters.responses_lost;
        self.notifications += counters.cnps_received;
        self.out_of_order_executed += counters.out_of_order_executed;
        self.probes += counters.probes;
        self.timeouts += counters.timeouts;
    }
}

/// Two endpoints and the links between them.
struct World {
    endpoints: [Endpoint; 2],
    /// The link that leads away from each endpoint.
    links: [Link; 2],
    /// The attempts of each endpoint's requester.
    attempts: [Attempts; 2],
    plans: [Rc<Plan>; 2],
    now: Time,
    trace: bool,
    /// Whether the links only delay.
    is_faultless: bool,
    stats: Stats,
}

/// Runs `seed` to its end within `limits`. With `trace`, prints the events.
///
/// # Panics
/// When a guarantee is violated.
pub fn run(seed: u64, limits: &Limits, trace: bool) -> Stats {
    run_scripted(seed, limits, [Vec::new(), Vec::new()], trace)
}

/// Runs `seed` like [`run`], with scripts for the first decisions of the two links.
///
/// # Panics
/// When a guarantee is violated.
pub fn run_scripted(seed: u64, limits: &Limits, scripts: [Vec<u8>; 2], trace: bool) -> Stats {
    let mut world = World::new(seed, limits, scripts, trace);
    world.run();
    world.stats
}

impl World {
    fn new(seed: u64, limits: &Limits, scripts: [Vec<u8>; 2], trace: bool) -> Self {
        let mut rng = Rng::seed_from_u64(seed);
        let mtu = Mtu::ALL[rng.random_range(0..5)];
        let is_v4 = rng.random_bool(0.3);
        let xrc = rng.random_bool(0.2);
        let plan_configs = [(); 2].map(|()| random_plan_config(&mut rng, xrc, limits));
        let mut configs = plan_configs
            .each_ref()
            .map(|plan| random_endpoint_config(&mut rng, plan, mtu, xrc));
        let bad = rng.random_bool(0.85);
        let mut faults = [(); 2].map(|()| faults(&mut rng, bad));
        choose_later_options(seed, &mut configs, &mut faults);
        let faults = faults.map(|faults| faults.within(limits));
        if trace {
            eprintln!("seed {seed}: {mtu:?}\n{plan_configs:#?}\n{configs:#?}\n{faults:#?}");
        }
        let mut plans = plan_configs.map(|config| Plan::new(&mut rng, &config));
        let has_second_writer = add_second_writer(seed, &mut plans);
        let plans = plans.map(Rc::new);
        let endpoint = |index: usize| {
            let (own, peer) = (index, 1 - index);
            Endpoint::new(
                index,
                mtu,
                [&configs[own], &configs[peer]],
                [Rc::clone(&plans[own]), Rc::clone(&plans[peer])],
                Rng::seed_from_u64(seed ^ (0x5eed_0000 + index as u64)),
            )
        };
        let mut links = scripts.into_iter().zip(faults).map(|(script, faults)| {
            Link::new(faults, is_v4, ScriptedRng::new(script, rng.random()))
        });
        let mut links = [links.next(), links.next()].map(|link| link.expect("there are two"));
        if has_second_writer {
            links.iter_mut().for_each(Link::bound_reordering);
        }
        World {
            is_faultless: faults.iter().all(Faults::are_none),
            endpoints: [endpoint(0), endpoint(1)],
            links,
            attempts: Default::default(),
            plans,
            now: Time(0),
            trace,
            stats: Stats::default(),
        }
    }

    fn run(&mut self) {
        for event in 0.. {
            let next = (0..2)
                .map(|i| self.endpoints[i].next().min(self.links[i].next_arrival()))
                .fold(Time::NEVER, Time::min);
            if next == Time::NEVER {
                break;
            }
            self.now = self.now.max(next);
            if event > MAX_EVENTS || self.now.since(Time(0)) > MAX_RUN_TIME {
                panic!(
                    "the run does not end at {:?} after {event} events: {}",
                    self.now,
                    self.progress()
                );
            }
            for index in 0..2 {
                self.deliver(index);
                for packet in self.endpoints[index].step(self.now) {
                    self.send(index, &packet);
                }
            }
            let mut endpoints = self.endpoints.iter();
            if let Some(index) = endpoints.position(|endpoint| endpoint.has_exhausted_retries) {
                self.check_exhausted(index);
                self.count();
                return;
            }
        }
        if !self.endpoints.iter().all(Endpoint::is_done) {
            panic!(
                "no event is pending at {:?}, and work is outstanding: {}",
                self.now,
                self.progress()
            );
        }
        let lossless = self.is_faultless && self.links.iter().all(|link| link.overflowed == 0);
        for index in 0..2 {
            self.endpoints[index].check_end();
            let counters = self.endpoints[index].qp.counters();
            if lossless {
                assert_eq!(counters.timeouts, 0, "{}", self.progress());
                // For a drain, the last packet may be retransmitted to request an acknowledgement.
                let few = counters.retransmitted <= self.endpoints[index].drains + counters.probes;
                let waited = counters.rnr_naks_received > 0;
                assert!(few || waited, "{}", self.progress());
            }
        }
        self.count();
    }

    /// Adds the counts of the endpoints and links.
    fn count(&mut self) {
        for index in 0..2 {
            for qp in self.endpoints[index].qps() {
                self.stats.count(qp.counters());
            }
            self.stats.versions_read += self.endpoints[index].versions_read;
            self.stats.partial_reads_dropped += self.endpoints[index].partial_reads_dropped;
            self.stats.drains += self.endpoints[index].drains;
            self.stats.partitions += self.links[index].partitions;
            self.stats.damaged += self.links[index].damaged;
            self.stats.undetected += self.links[index].undetected;
            let operations = self.plans[index].ops.len() as u64;
            self.stats.operations += operations;
            if self.endpoints[index].qps().count() > 1 {
                self.stats.xrc_operations += operations;
            }
        }
        self.stats.time = self.now.since(Time(0));
    }

    /// Sends a packet of endpoint `index`.
    fn send(&mut self, index: usize, bytes: &[u8]) {
        if self.trace {
            self.trace_packet(index, "sends", bytes);
        }
        let packet = Packet::parse(bytes).expect("endpoints send well-formed packets");
        if let Some(una) = self.endpoints[index].oldest_psn() {
            self.attempts[index].progressed(una);
        }
        self.attempts[index].sent(&packet);
        self.attempts[1 - index].answered(&packet);
        self.links[index].send(self.now, bytes);
    }

    /// Checks that endpoint `index` exhausted its retries because the links lost every attempt of
    /// a request, or its answer. The run ends: the program does not reconnect.
    ///
    /// # Panics
    /// When an attempt succeeded, or is in flight.
    fn check_exhausted(&mut self, index: usize) {
        assert!(!self.is_faultless, "{}", self.progress());
        let attempts = &self.attempts[index];
        attempts.check_exhausted();
        self.links[index].visit_in_flight(|packet| {
            assert!(
                !attempts.is_attempt(packet),
                "an attempt is in flight: {packet:?}"
            );
        });
        self.links[1 - index].visit_in_flight(|packet| {
            assert!(
                !attempts.acknowledges(packet),
                "an answer is in flight: {packet:?}"
            );
        });
        self.stats.retries_exhausted += 1;
    }

    /// Delivers the packets that have arrived at endpoint `index`.
    fn deliver(&mut self, index: usize) {
        let from = 1 - index;
        while let Some(arrival) = self.links[from].arrived(self.now) {
            let Some(bytes) = arrival.packet else {
                self.stats.bad_icrc += 1;
                continue;
            };
            if self.trace {
                self.trace_packet(index, "gets", &bytes);
            }
            let packet = Packet::parse(&bytes).expect("endpoints send well-formed packets");
            self.stats.delivered += 1;
            self.attempts[from].delivered(&packet);
            self.attempts[index].received(&packet);
            self.endpoints[index].receive(self.now, gid(from), &packet, arrival.marked);
        }
    }

    fn trace_packet(&self, index: usize, verb: &str, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("endpoints send well-formed packets");
        let header = &packet.header;
        let mut line = format!(
            "{:>12.3} us  {} {verb:5} {:>8} {}",
            self.now.0 as f64 / 1e3,
            ["A", "B"][index],
            header.bth.psn.get(),
            header.bth.opcode.info().name,
        );
        if header.bth.ack_req {
            line += " ackreq";
        }
        if let Some(aeth) = header.aeth {
            line += &format!(" {:?} msn {}", aeth.syndrome, aeth.msn);
        }
        if let Some(reth) = header.reth {
            line += &format!(" {:#x}+{}", reth.addr, reth.length);
        }
        eprintln!("{line} [{}]", packet.payload.len());
    }

    fn progress(&self) -> String {
        let [a, b] = &self.endpoints;
        format!("\nA {}\nB {}", a.progress(), b.progress())
    }
}

fn random_plan_config(rng: &mut Rng, xrc: bool, limits: &Limits) -> PlanConfig {
    let scale = rng.random_range(0.0..1.0_f64);
    // Mostly small ones, some of several hundred KiB, a few of 4 MiB.
    let longest = match rng.random_range(0..100) {
        0..2 => 4 << 20,
        2..15 => 600_000,
        _ => (64.0 * 2_f64.powf(scale * 11.0)) as usize,
    };
    let longest = longest.min(limits.longest);
    let mut weights = [0; 12];
    for weight in &mut weights {
        *weight = [0, 1, 3][rng.random_range(0..3)];
    }
    weights[rng.random_range(0..10)] += 2;
    if xrc {
        // XRC has neither ATOMIC WRITE nor FLUSH.
        weights[10..].fill(0);
    }
    PlanConfig {
        ops: [0, 1, 5, 40, 400][rng.random_range(0..5)].min(limits.ops),
        longest,
        budget: longest.max(200_000),
        max_sge: [0, 1, 1, 3, 32, 32][rng.random_range(0..6)],
        max_inline: [0, 64, 512][rng.random_range(0..3)],
        target: [64, 4096, longest.max(64)][rng.random_range(0..3)],
        signaled: [0.0, 0.1, 0.5, 1.0][rng.random_range(0..4)],
        fence: [0.0, 0.0, 0.2][rng.random_range(0..3)],
        weights,
    }
}

fn random_endpoint_config(rng: &mut Rng, plan: &PlanConfig, mtu: Mtu, xrc: bool) -> EndpointConfig {
    let us = Duration::from_micros;
    // Often close to the end of the range, so that PSNs wrap early in the run.
    let psn = if rng.random_bool(0.5) {
        Psn::new(0) - rng.random_range(0..200)
    } else {
        Psn::new(rng.random())
    };
    let send = SendQueueSize {
        max_wr: [1, 2, 8, 128][rng.random_range(0..4)],
        max_sge: plan.max_sge.max(1) as u32,
        max_inline: plan.max_inline as u32,
    };
    let receives = [1, 4, 64][rng.random_range(0..3)];
    let signal_all = rng.random_bool(0.1);
    let shared = rng.random_bool(0.3);
    let base_bytes = [1, 4, 16, 64, 256][rng.random_range(0..5)] * mtu.bytes() as u32;
    let window = WindowLimits {
        base_bytes,
        max_bytes: 4 * base_bytes,
    };
    EndpointConfig {
        send,
        receives,
        signal_all,
        xrc,
        shared,
        window,
        out_of_order_bytes: 0,
        congestion: Algorithm::default(),
        psn,
        timeout: [0, 14, 14, 18][rng.random_range(0..4)],
        min_rnr_timer: rng.random_range(1..18),
        max_rd_atomic: [1, 2, 4, 16, 128][rng.random_range(0..5)],
        send_pause: us([1, 50, 2000][rng.random_range(0..3)]),
        receive_pause: us([1, 50, 5000][rng.random_range(0..3)]),
        poll_delay: us([0, 0, 5, 100][rng.random_range(0..4)]),
        sink: [1, 4, 64][rng.random_range(0..3)],
        drain: [0.0, 0.0, 0.1][rng.random_range(0..3)],
        accepts_partial_reads: true,
    }
}

/// Adds a second writer at the target to the READs of some seeds. It has a generator of its own,
/// for the same reason as [`choose_later_options`].
fn add_second_writer(seed: u64, plans: &mut [Plan; 2]) -> bool {
    let mut rng = Rng::seed_from_u64(seed ^ 0x5ec0_4d77);
    let part = [0.0, 0.5, 1.0][rng.random_range(0..3)];
    for plan in plans {
        plan.read_versions(&mut rng, part);
    }
    part > 0.0
}

/// Chooses congestion control, ECN marking and the responders' behaviour. It has a generator of its
/// own, so that existing seeds keep their other decisions.
fn choose_later_options(seed: u64, configs: &mut [EndpointConfig; 2], faults: &mut [Faults; 2]) {
    let mut rng = Rng::seed_from_u64(seed ^ 0xc09e_5710);
    for config in configs.iter_mut() {
        config.out_of_order_bytes = [0, 4_000, 1 << 20, 1 << 20][rng.random_range(0..4)];
        config.congestion = Algorithm::ALL[rng.random_range(0..Algorithm::ALL.len())];
    }
    for faults in faults {
        faults.mark = [usize::MAX, usize::MAX, 4, 30][rng.random_range(0..4)];
    }
    for config in configs {
        config.accepts_partial_reads = rng.random_bool(0.8);
    }
}
