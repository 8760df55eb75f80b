//! Link utilisation of connections: bulk transfer in virtual time, so that the figures are exact
//! and independent of the load of the machine.
//!
//! Requesters send WRITEs at full speed over one link to one host, or READs whose responses use
//! that link. The link has a rate and a queue, and drops packets that find the queue full. It
//! models a switch, or the receive buffer of a host that processes packets at that rate. The
//! packets of the other direction have a lossless link of their own.

use crate::host::{Region, SimHost};
use crate::rng::Rng;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;
use urxe_proto::host::{Access, Transmit};
use urxe_proto::ids::{Gid, Qpn, RKey, Source};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, QpAttr, QpType, transitions_to_rts};
use urxe_proto::queue::{RecvQueue, SendQueueSize};
use urxe_proto::rc::congestion::{Algorithm, WindowLimits};
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, Sge};

/// The length of each WRITE, and of a long READ, in bytes.
pub const MESSAGE: u32 = 64 << 10;
/// The length of a short READ in bytes: one packet.
const SHORT: u32 = 4 << 10;
/// The number of outstanding READ requests.
pub const READS: u8 = 16;
/// The length of a transfer of the first two tables, in virtual time.
const TRANSFER_TIME: Duration = Duration::from_millis(60);
/// The window limits and the size of the out-of-order queue, as in the driver.
const WINDOW: WindowLimits = WindowLimits {
    base_bytes: 256 << 10,
    max_bytes: 256 << 20,
};
const OUT_OF_ORDER_BYTES: u32 = 16 << 20;
const KEY: u32 = 1;
const BASE: u64 = 1 << 32;
const FIRST: u32 = 0x11;
const PSN_BITS: u32 = 24;

/// A link and its users.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The description.
    pub name: &'static str,
    /// The number of requesters.
    pub senders: usize,
    /// The rate, in bytes per second.
    pub rate: u64,
    /// The time from sending a packet to its answer on an idle link.
    pub round_trip: Duration,
    /// The size of the queue, in packets.
    pub queue: usize,
    /// The queue length, in packets, from which packets are marked (ECN).
    pub mark: usize,
    /// The probability of a loss, per packet.
    pub loss: f64,
    /// The number of consecutive packets per loss.
    pub run: u32,
    /// The number of work requests that each requester keeps posted.
    pub depth: u32,
    /// The number of READ requests that each requester may have outstanding (`max_rd_atomic`).
    pub reads: u8,
    /// The time from the start of the transfer to the start of the measurement of the link's use.
    pub warm_up: Duration,
    /// The length of the transfer, in virtual time.
    pub duration: Duration,
}

/// A NIC's link within a rack.
pub const NIC: Case = Case {
    name: "25 Gbit/s, 60 us",
    senders: 1,
    rate: 3_000_000_000,
    round_trip: Duration::from_micros(60),
    queue: 1000,
    mark: usize::MAX,
    loss: 0.0,
    run: 1,
    depth: 16,
    reads: READS,
    warm_up: Duration::ZERO,
    duration: TRANSFER_TIME,
};

/// The cases of the tables.
pub const CASES: [Case; 13] = [
    NIC,
    Case {
        name: "loss 0.1%",
        loss: 0.001,
        ..NIC
    },
    Case {
        name: "loss 1%",
        loss: 0.01,
        ..NIC
    },
    Case {
        name: "loss of 8 at a time, 1% in all",
        loss: 0.01 / 8.0,
        run: 8,
        ..NIC
    },
    Case {
        name: "receive buffer of 50 packets",
        queue: 50,
        ..NIC
    },
    Case {
        name: "the same, 4 senders",
        senders: 4,
        queue: 50,
        ..NIC
    },
    Case {
        name: "the same, 16 senders",
        senders: 16,
        queue: 50,
        ..NIC
    },
    Case {
        name: "switch queue of 20 packets",
        queue: 20,
        ..NIC
    },
    Case {
        name: "CE marks from 20 packets on",
        mark: 20,
        queue: 200,
        ..NIC
    },
    Case {
        name: "the same, 8 senders",
        senders: 8,
        mark: 20,
        queue: 200,
        ..NIC
    },
    Case {
        name: "8 senders, no marks",
        senders: 8,
        queue: 200,
        ..NIC
    },
    Case {
        name: "1 Gbit/s, 1 ms",
        rate: 125_000_000,
        round_trip: Duration::from_millis(1),
        queue: 100,
        ..NIC
    },
    Case {
        name: "the same, loss 1%",
        rate: 125_000_000,
        round_trip: Duration::from_millis(1),
        queue: 100,
        loss: 0.01,
        ..NIC
    },
];

/// The work of the requesters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// WRITEs of this many bytes.
    Write(u32),
    /// SENDs of this many bytes.
    Send(u32),
    /// READs of this many bytes.
    Read(u32),
}

impl Work {
    fn bytes(self) -> u32 {
        match self {
            Work::Write(bytes) | Work::Send(bytes) | Work::Read(bytes) => bytes,
        }
    }
}

/// The result of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The fraction of the link's rate that carried acknowledged data.
    pub utilization: f64,
    /// The fraction of the sent packets that were retransmissions.
    pub retransmitted: f64,
    /// The fraction of the link's rate, after the warm-up, that carried packets sent for the first
    /// time.
    pub carried: f64,
    /// The number of packets of either direction whose PSN had been sent before.
    pub sent_again: u64,
    /// The number of packets that arrived for the first time.
    pub arrived: u64,
    /// The number of packets that arrived although they had arrived before.
    pub arrived_again: u64,
    /// The number of packets that were sent, acknowledgements excepted.
    pub packets: u64,
    /// The number of completed work requests.
    pub completed: u64,
    /// The longest time from posting a work request to its completion.
    pub latency: Duration,
    /// The longest time for which a requester received nothing.
    pub longest_gap: Duration,
    /// The average time of a packet in the queue.
    pub queueing_delay: Duration,
}

impl Outcome {
    /// The fraction of the packets that arrived which had arrived before.
    pub fn needless(&self) -> f64 {
        self.arrived_again as f64 / (self.arrived + self.arrived_again).max(1) as f64
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = format!(
            "{:.0}%, {:.1}%, {:.1} ms, {} us",
            self.utilization * 100.0,
            self.retransmitted * 100.0,
            self.longest_gap.as_secs_f64() * 1e3,
            self.queueing_delay.as_micros()
        );
        f.pad(&cell)
    }
}

/// Writes two tables with a row per case. The columns are: for WRITEs, an algorithm and a kind of
/// responder; for READs, an algorithm and a length.
pub fn table(mut line: impl FnMut(String)) {
    line(format!(
        "{MESSAGE} bytes a WRITE, MTU 4096, {} ms; link utilization, retransmitted, longest gap, \
         queueing delay",
        TRANSFER_TIME.as_millis()
    ));
    let columns = Algorithm::ALL
        .map(|algorithm| [true, false].map(|keeps_out_of_order| (algorithm, keeps_out_of_order)));
    let columns = columns.as_flattened();
    let names = columns.iter().map(|&(algorithm, keeps_out_of_order)| {
        let peer = if keeps_out_of_order {
            "urxe"
        } else {
            "go-back-N"
        };
        format!("{algorithm}, peer {peer}")
    });
    let names: Vec<_> = names.collect();
    line(format!("| | {} |", names.join(" | ")));
    line(format!("|---|{}", "---|".repeat(names.len())));
    for case in CASES {
        let cells = columns.iter().map(|&(algorithm, keeps_out_of_order)| {
            run(&case, algorithm, keeps_out_of_order, Work::Write(MESSAGE)).to_string()
        });
        let cells: Vec<_> = cells.collect();
        line(format!("| {} | {} |", case.name, cells.join(" | ")));
    }
    line(format!(
        "READ, {READS} outstanding; the same figures of the responses"
    ));
    let columns = Algorithm::ALL.map(|algorithm| [MESSAGE, SHORT].map(|bytes| (algorithm, bytes)));
    let columns = columns.as_flattened();
    let names = columns
        .iter()
        .map(|(algorithm, bytes)| format!("{algorithm}, {} KiB", bytes >> 10));
    let names: Vec<_> = names.collect();
    line(format!("| | {} |", names.join(" | ")));
    line(format!("|---|{}", "---|".repeat(names.len())));
    for case in CASES {
        let cells = columns
            .iter()
            .map(|&(algorithm, bytes)| run(&case, algorithm, true, Work::Read(bytes)).to_string());
        let cells: Vec<_> = cells.collect();
        line(format!("| {} | {} |", case.name, cells.join(" | ")));
    }
}

/// Runs one transfer. With `keeps_out_of_order`, responders have an out-of-order queue; otherwise
/// they drop requests behind a gap.
pub fn run(case: &Case, algorithm: Algorithm, keeps_out_of_order: bool, work: Work) -> Outcome {
    let mut world = World::new(*case, algorithm, keeps_out_of_order, work);
    world.run();
    world.outcome()
}

struct Endpoint {
    qp: RcQp,
    host: SimHost,
    work: Work,
    /// The PSN after the highest that it sent over the measured link.
    sent_end: Psn,
    /// The PSNs of the packets that arrived over the measured link, a bit each.
    arrived: Vec<u64>,
    /// The times at which the outstanding work requests were posted.
    posted: VecDeque<Time>,
    latency: Duration,
    completed: u64,
    last_received: Time,
    longest_gap: Duration,
}

/// A sink for one call of `poll_transmit`.
struct Sink {
    now: Time,
    staged: Vec<u8>,
    packets: Vec<Vec<u8>>,
}

impl Transmit for Sink {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        self.staged.clear();
        self.staged.resize(len, 0);
        Some(&mut self.staged)
    }

    fn commit(&mut self) {
        self.packets.push(std::mem::take(&mut self.staged));
    }

    fn cancel(&mut self) {}

    fn now(&self) -> Time {
        self.now
    }
}

/// A packet in flight: its arrival time, a number that breaks ties, the index of the receiving end,
/// its bytes, and whether it is marked.
type InFlight = Reverse<(Time, u64, usize, Vec<u8>, bool)>;

struct World {
    case: Case,
    work: Work,
    /// The requesters, followed by their responders.
    endpoints: Vec<Endpoint>,
    in_flight: BinaryHeap<InFlight>,
    number: u64,
    /// The times at which the queued packets leave the queue.
    departures: VecDeque<Time>,
    /// The number of further packets to lose.
    losses_left: u32,
    rng: Rng,
    now: Time,
    /// Packets sent over the measured link, and READ requests.
    sent: u64,
    requests: u64,
    /// Packets whose PSN had been sent before.
    retransmitted: u64,
    /// Packets that arrived, for the first time and again.
    arrived: u64,
    arrived_again: u64,
    /// The time for which the link carried packets sent for the first time, after the warm-up.
    carrying: Duration,
    queueing_delay: Duration,
}

fn gid(index: usize) -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, index as u8 + 1).into())
}

fn qpn(index: usize) -> Qpn {
    Qpn::new(FIRST + index as u32)
}

impl World {
    fn new(case: Case, algorithm: Algorithm, keeps_out_of_order: bool, work: Work) -> Self {
        let out_of_order_bytes = if keeps_out_of_order {
            OUT_OF_ORDER_BYTES
        } else {
            0
        };
        let endpoints = (0..2 * case.senders).map(|index| {
            let peer = (index + case.senders) % (2 * case.senders);
            Endpoint::new(index, peer, algorithm, out_of_order_bytes, work, &case)
        });
        let mut world = World {
            case,
            work,
            endpoints: endpoints.collect(),
            in_flight: BinaryHeap::new(),
            number: 0,
            departures: VecDeque::new(),
            losses_left: 0,
            rng: Rng::seed_from_u64(1),
            now: Time(0),
            sent: 0,
            requests: 0,
            retransmitted: 0,
            arrived: 0,
            arrived_again: 0,
            carrying: Duration::ZERO,
            queueing_delay: Duration::ZERO,
        };
        for index in 0..case.senders {
            for _ in 0..case.depth {
                world.endpoints[index].post(Time(0));
            }
            world.poll(index);
        }
        world
    }

    fn run(&mut self) {
        let end = Time(0) + self.case.duration;
        loop {
            let deadlines = self.endpoints.iter().map(|end| end.qp.deadline());
            let deadline = deadlines.min().unwrap_or(Time::NEVER);
            let arrival = match self.in_flight.peek() {
                Some(Reverse((at, ..))) => *at,
                None => Time::NEVER,
            };
            self.now = self.now.max(arrival.min(deadline));
            if self.now >= end {
                self.now = end;
                return;
            }
            if arrival <= deadline
                && let Some(Reverse((_, _, index, bytes, marked))) = self.in_flight.pop()
            {
                self.endpoints[index].receive(self.now, &bytes, marked, self.case.senders);
                self.poll(index);
                continue;
            }
            for index in 0..self.endpoints.len() {
                let end = &mut self.endpoints[index];
                if end.qp.deadline() <= self.now {
                    end.qp.handle_timeout(self.now, &mut end.host);
                    self.poll(index);
                }
            }
        }
    }

    fn poll(&mut self, index: usize) {
        let mut sink = Sink {
            now: self.now,
            staged: Vec::new(),
            packets: Vec::new(),
        };
        let end = &mut self.endpoints[index];
        end.qp.poll_transmit(self.now, &mut end.host, &mut sink);
        for packet in sink.packets {
            self.send(index, packet);
        }
    }

    fn send(&mut self, from: usize, packet: Vec<u8>) {
        let half = self.case.round_trip / 2;
        let senders = self.case.senders;
        self.number += 1;
        let is_requester = from < senders;
        let to = (from + senders) % (2 * senders);
        if is_requester == matches!(self.work, Work::Read(_)) {
            self.requests += u64::from(is_requester);
            let at = self.now + half;
            self.in_flight
                .push(Reverse((at, self.number, to, packet, false)));
            return;
        }
        self.sent += 1;
        let parsed = Packet::parse(&packet).expect("what an end sends is well-formed");
        let psn = parsed.header.bth.psn;
        let is_first = !psn.before(self.endpoints[from].sent_end);
        match is_first {
            true => self.endpoints[from].sent_end = psn.next(),
            false => self.retransmitted += 1,
        }
        while self.departures.front().is_some_and(|at| *at <= self.now) {
            self.departures.pop_front();
        }
        if self.losses_left == 0 && self.rng.random_bool(self.case.loss) {
            self.losses_left = self.case.run;
        }
        if self.losses_left > 0 {
            self.losses_left -= 1;
            return;
        }
        if self.departures.len() >= self.case.queue {
            return;
        }
        let marked = self.departures.len() >= self.case.mark;
        let takes = Duration::from_nanos(packet.len() as u64 * 1_000_000_000 / self.case.rate);
        let begins = self.departures.back().copied().unwrap_or(self.now);
        self.queueing_delay += begins.since(self.now);
        let leaves = begins + takes;
        self.departures.push_back(leaves);
        let measured = Time(0) + self.case.warm_up..Time(0) + self.case.duration;
        if is_first && measured.contains(&leaves) {
            self.carrying += takes;
        }
        match self.endpoints[to].arrives(psn) {
            true => self.arrived += 1,
            false => self.arrived_again += 1,
        }
        let at = leaves + half;
        self.in_flight
            .push(Reverse((at, self.number, to, packet, marked)));
    }

    fn outcome(&self) -> Outcome {
        let requesters = &self.endpoints[..self.case.senders];
        let completed: u64 = requesters.iter().map(|end| end.completed).sum();
        let again = |end: &Endpoint| end.qp.counters().retransmitted;
        let requests_again: u64 = requesters.iter().map(again).sum();
        let longest_gap = requesters
            .iter()
            .map(|end| end.longest_gap.max(self.now.since(end.last_received)));
        Outcome {
            utilization: completed as f64 * f64::from(self.work.bytes())
                / (self.case.rate as f64 * self.case.duration.as_secs_f64()),
            retransmitted: self.retransmitted as f64 / self.sent.max(1) as f64,
            carried: self.carrying.as_secs_f64()
                / (self.case.duration - self.case.warm_up).as_secs_f64(),
            arrived: self.arrived,
            arrived_again: self.arrived_again,
            packets: self.sent + self.requests,
            completed,
            latency: requesters
                .iter()
                .map(|end| end.latency)
                .max()
                .unwrap_or_default(),
            sent_again: match self.work {
                Work::Write(_) | Work::Send(_) => self.retransmitted,
                Work::Read(_) => self.retransmitted + requests_again,
            },
            longest_gap: longest_gap.max().unwrap_or_default(),
            queueing_delay: self.queueing_delay
                / u32::try_from(self.sent.max(1)).unwrap_or(u32::MAX),
        }
    }
}

impl Endpoint {
    fn new(
        index: usize,
        peer: usize,
        algorithm: Algorithm,
        out_of_order_bytes: u32,
        work: Work,
        case: &Case,
    ) -> Self {
        let depth = case.depth;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = Region {
            key: KEY,
            base: BASE,
            access,
            bytes: RefCell::new(vec![0; work.bytes() as usize]),
        };
        let host = SimHost {
            regions: vec![region],
            invalidatable: RefCell::default(),
            local: RefCell::default(),
            receives: RecvQueue::new(depth, 1).expect("memory"),
            shared: false,
            srq: None,
            sends: VecDeque::new(),
            receptions: VecDeque::new(),
            watched: None,
            versions: None,
            events: VecDeque::new(),
        };
        let config = RcConfig {
            service: QpType::Rc,
            qpn: qpn(index),
            send: SendQueueSize {
                max_wr: depth,
                max_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
            window: WINDOW,
            out_of_order_bytes,
            congestion: algorithm,
        };
        let mut end = Endpoint {
            qp: RcQp::new(config).expect("memory"),
            host,
            work,
            sent_end: Psn::new(0),
            arrived: vec![0; 1 << (PSN_BITS - 6)],
            posted: VecDeque::new(),
            latency: Duration::ZERO,
            completed: 0,
            last_received: Time(0),
            longest_gap: Duration::ZERO,
        };
        let attr = QpAttr {
            access,
            av: AddressVector {
                dgid: gid(peer),
                is_global: true,
                ..AddressVector::default()
            },
            path_mtu: Mtu::B4096,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: case.reads,
            max_dest_rd_atomic: case.reads,
            min_rnr_timer: 12,
            dest_qpn: qpn(peer),
            ..QpAttr::default()
        };
        for (state, mask) in transitions_to_rts(QpType::Rc) {
            let attr = QpAttr { state, ..attr };
            end.qp
                .modify(&attr, mask, Time(0), &mut end.host)
                .expect("the transition is legal");
        }
        for _ in 0..depth {
            end.post_receive();
        }
        end
    }

    /// The memory of each message.
    fn buffer(&self) -> [Sge; 1] {
        [Sge {
            addr: BASE,
            length: self.work.bytes(),
            lkey: urxe_proto::ids::LKey(KEY),
        }]
    }

    fn post_receive(&mut self) {
        if let Work::Send(_) = self.work {
            let buffer = self.buffer();
            self.host.receives.post(0, &buffer).expect("there is room");
            self.qp.receive_posted(&mut self.host);
        }
    }

    fn post(&mut self, now: Time) {
        let sges = self.buffer();
        let (addr, rkey) = (BASE, RKey(KEY));
        let wr = SendWr {
            wr_id: 0,
            op: match self.work {
                Work::Write(_) => SendOp::Write { addr, rkey },
                Work::Send(_) => SendOp::Send,
                Work::Read(_) => SendOp::Read { addr, rkey },
            },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        self.qp
            .post_send(&wr, now, &mut self.host)
            .expect("there is room");
        self.posted.push_back(now);
    }

    /// Records that a packet with this PSN arrives. Returns whether it is the first.
    fn arrives(&mut self, psn: Psn) -> bool {
        let at = psn.get() as usize;
        let is_first = self.arrived[at / 64] & (1 << (at % 64)) == 0;
        self.arrived[at / 64] |= 1 << (at % 64);
        // PSNs are used again after a round through their space.
        let opposite = (at + (1 << (PSN_BITS - 1))) % (1 << PSN_BITS);
        self.arrived[opposite / 64] = 0;
        is_first
    }

    fn receive(&mut self, now: Time, bytes: &[u8], marked: bool, senders: usize) {
        let packet = Packet::parse(bytes).expect("what an end sends is well-formed");
        let index = (self.qp.qpn().get() - FIRST) as usize;
        let peer = (index + senders) % (2 * senders);
        let source = Source {
            gid: gid(peer),
            port: 0xc000,
        };
        self.qp.handle_packet(now, source, &packet, &mut self.host);
        if marked {
            self.qp.handle_ecn_mark(now, &packet);
        }
        self.longest_gap = self.longest_gap.max(now.since(self.last_received));
        self.last_received = now;
        while self.host.sends.pop_front().is_some() {
            self.completed += 1;
            let posted = self.posted.pop_front().expect("it was posted");
            self.latency = self.latency.max(now.since(posted));
            self.post(now);
        }
        while self.host.receptions.pop_front().is_some() {
            self.post_receive();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utilization(name: &str, algorithm: Algorithm) -> f64 {
        let case = CASES.into_iter().find(|case| case.name == name).unwrap();
        run(&case, algorithm, true, Work::Write(MESSAGE)).utilization
    }

    #[test]
    fn link_without_faults_is_used_fully() {
        for algorithm in Algorithm::ALL {
            assert!(
                utilization("25 Gbit/s, 60 us", algorithm) > 0.9,
                "{algorithm}"
            );
        }
    }

    #[test]
    fn delay_algorithm_tolerates_random_loss() {
        assert!(utilization("loss 1%", Algorithm::Delay) > 0.5);
        assert!(utilization("loss 1%", Algorithm::Loss) > 0.2);
    }

    #[test]
    fn small_queues_and_many_senders_do_not_collapse() {
        for name in [
            "the same, 16 senders",
            "switch queue of 20 packets",
            "the same, 8 senders",
        ] {
            assert!(utilization(name, Algorithm::default()) > 0.6, "{name}");
        }
    }

    /// A burst that overflows the queue loses its tail, which nothing reports.
    #[test]
    fn peer_that_goes_back_n_does_not_collapse_at_a_short_queue() {
        let name = "switch queue of 20 packets";
        let case = CASES.into_iter().find(|case| case.name == name).unwrap();
        let outcome = run(&case, Algorithm::Loss, false, Work::Write(MESSAGE));
        assert!(outcome.utilization > 0.47, "{outcome}");
        assert!(outcome.longest_gap < Duration::from_millis(2), "{outcome}");
    }
}
