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
use urxe_proto::rc::congestion::Algorithm;
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, Sge};

/// The length of each WRITE, and of a long READ, in bytes.
const MESSAGE: u32 = 64 << 10;
/// The length of a short READ in bytes: one packet.
const SHORT: u32 = 4 << 10;
/// The number of work requests that each requester keeps posted, and of outstanding READs.
const POSTED: u32 = 16;
/// The length of a transfer, in virtual time.
const LENGTH: Duration = Duration::from_millis(60);
/// The window limit and the size of the out-of-order queue, as in the driver.
const WINDOW_BYTES: u32 = 256 << 10;
const HOLD_BYTES: u32 = 512 << 10;
const KEY: u32 = 1;
const BASE: u64 = 1 << 32;
const FIRST: u32 = 0x11;

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
}

const NIC: Case = Case {
    name: "25 Gbit/s, 60 us",
    senders: 1,
    rate: 3_000_000_000,
    round_trip: Duration::from_micros(60),
    queue: 1000,
    mark: usize::MAX,
    loss: 0.0,
    run: 1,
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
    /// WRITEs of 64 KiB.
    Write,
    /// READs of this many bytes.
    Read(u32),
}

impl Work {
    fn bytes(self) -> u32 {
        match self {
            Work::Write => MESSAGE,
            Work::Read(bytes) => bytes,
        }
    }
}

/// The result of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The fraction of the link's rate that carried acknowledged data.
    pub used: f64,
    /// The fraction of the sent packets that were retransmissions.
    pub again: f64,
    /// The longest time for which a requester received nothing.
    pub silence: Duration,
    /// The average time of a packet in the queue.
    pub waited: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = format!(
            "{:.0}%, {:.1}%, {:.1} ms, {} us",
            self.used * 100.0,
            self.again * 100.0,
            self.silence.as_secs_f64() * 1e3,
            self.waited.as_micros()
        );
        f.pad(&cell)
    }
}

/// Writes two tables with a row per case. The columns are: for WRITEs, an algorithm and a kind of
/// responder; for READs, an algorithm and a length.
pub fn table(mut line: impl FnMut(String)) {
    line(format!(
        "{MESSAGE} bytes a WRITE, MTU 4096, {} ms; link used, sent again, longest silence, wait in the queue",
        LENGTH.as_millis()
    ));
    let columns = Algorithm::ALL.map(|algorithm| [true, false].map(|keeps| (algorithm, keeps)));
    let columns = columns.as_flattened();
    let names = columns.iter().map(|&(algorithm, keeps)| {
        let peer = if keeps { "urxe" } else { "go-back-N" };
        format!("{algorithm}, peer {peer}")
    });
    let names: Vec<_> = names.collect();
    line(format!("| | {} |", names.join(" | ")));
    line(format!("|---|{}", "---|".repeat(names.len())));
    for case in CASES {
        let cells = columns
            .iter()
            .map(|&(algorithm, keeps)| run(&case, algorithm, keeps, Work::Write).to_string());
        let cells: Vec<_> = cells.collect();
        line(format!("| {} | {} |", case.name, cells.join(" | ")));
    }
    line(format!(
        "READ, {POSTED} outstanding; the same figures of the responses"
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

/// Runs one transfer. With `keeps`, responders have an out-of-order queue; else they drop such
/// requests.
pub fn run(case: &Case, algorithm: Algorithm, keeps: bool, work: Work) -> Outcome {
    let mut world = World::new(*case, algorithm, keeps, work);
    world.run();
    world.outcome()
}

struct End {
    qp: RcQp,
    host: SimHost,
    work: Work,
    /// The PSN after the highest that it sent over the measured link.
    sent_end: Psn,
    completed: u64,
    heard: Time,
    silence: Duration,
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
type Flying = Reverse<(Time, u64, usize, Vec<u8>, bool)>;

struct World {
    case: Case,
    work: Work,
    /// The requesters, followed by their responders.
    ends: Vec<End>,
    flying: BinaryHeap<Flying>,
    number: u64,
    /// The times at which the queued packets leave the queue.
    leaving: VecDeque<Time>,
    /// The number of further packets to lose.
    losing: u32,
    rng: Rng,
    now: Time,
    sent: u64,
    /// Packets whose PSN had been sent before.
    again: u64,
    waited: Duration,
}

fn gid(index: usize) -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, index as u8 + 1).into())
}

fn qpn(index: usize) -> Qpn {
    Qpn::new(FIRST + index as u32)
}

impl World {
    fn new(case: Case, algorithm: Algorithm, keeps: bool, work: Work) -> Self {
        let hold_bytes = if keeps { HOLD_BYTES } else { 0 };
        let ends = (0..2 * case.senders).map(|index| {
            let peer = (index + case.senders) % (2 * case.senders);
            End::new(index, peer, algorithm, hold_bytes, work)
        });
        let mut world = World {
            case,
            work,
            ends: ends.collect(),
            flying: BinaryHeap::new(),
            number: 0,
            leaving: VecDeque::new(),
            losing: 0,
            rng: Rng::seed_from_u64(1),
            now: Time(0),
            sent: 0,
            again: 0,
            waited: Duration::ZERO,
        };
        for index in 0..case.senders {
            for _ in 0..POSTED {
                world.ends[index].post(Time(0));
            }
            world.poll(index);
        }
        world
    }

    fn run(&mut self) {
        let end = Time(0) + LENGTH;
        loop {
            let deadline = self.ends[..self.case.senders]
                .iter()
                .map(|end| end.qp.deadline())
                .min();
            let deadline = deadline.unwrap_or(Time::NEVER);
            let arrival = match self.flying.peek() {
                Some(Reverse((at, ..))) => *at,
                None => Time::NEVER,
            };
            self.now = self.now.max(arrival.min(deadline));
            if self.now >= end {
                self.now = end;
                return;
            }
            if arrival <= deadline
                && let Some(Reverse((_, _, index, bytes, marked))) = self.flying.pop()
            {
                self.ends[index].receive(self.now, &bytes, marked, self.case.senders);
                self.poll(index);
                continue;
            }
            for index in 0..self.case.senders {
                let end = &mut self.ends[index];
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
        let end = &mut self.ends[index];
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
        if is_requester != (self.work == Work::Write) {
            let at = self.now + half;
            self.flying
                .push(Reverse((at, self.number, to, packet, false)));
            return;
        }
        self.sent += 1;
        let parsed = Packet::parse(&packet).expect("what an end sends is well-formed");
        let psn = parsed.header.bth.psn;
        match psn.before(self.ends[from].sent_end) {
            true => self.again += 1,
            false => self.ends[from].sent_end = psn.next(),
        }
        while self.leaving.front().is_some_and(|at| *at <= self.now) {
            self.leaving.pop_front();
        }
        if self.losing == 0 && self.rng.random_bool(self.case.loss) {
            self.losing = self.case.run;
        }
        if self.losing > 0 {
            self.losing -= 1;
            return;
        }
        if self.leaving.len() >= self.case.queue {
            return;
        }
        let marked = self.leaving.len() >= self.case.mark;
        let takes = Duration::from_nanos(packet.len() as u64 * 1_000_000_000 / self.case.rate);
        let begins = self.leaving.back().copied().unwrap_or(self.now);
        self.waited += begins.since(self.now);
        let leaves = begins + takes;
        self.leaving.push_back(leaves);
        let at = leaves + half;
        self.flying
            .push(Reverse((at, self.number, to, packet, marked)));
    }

    fn outcome(&self) -> Outcome {
        let requesters = &self.ends[..self.case.senders];
        let completed: u64 = requesters.iter().map(|end| end.completed).sum();
        let silence = requesters
            .iter()
            .map(|end| end.silence.max(self.now.since(end.heard)));
        Outcome {
            used: completed as f64 * f64::from(self.work.bytes())
                / (self.case.rate as f64 * LENGTH.as_secs_f64()),
            again: self.again as f64 / self.sent.max(1) as f64,
            silence: silence.max().unwrap_or_default(),
            waited: self.waited / u32::try_from(self.sent.max(1)).unwrap_or(u32::MAX),
        }
    }
}

impl End {
    fn new(index: usize, peer: usize, algorithm: Algorithm, hold_bytes: u32, work: Work) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = Region {
            key: KEY,
            base: BASE,
            access,
            bytes: RefCell::new(vec![0; MESSAGE as usize]),
        };
        let host = SimHost {
            regions: vec![region],
            invalidatable: RefCell::default(),
            local: RefCell::default(),
            receives: RecvQueue::new(1, 1).expect("memory"),
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
                max_wr: POSTED,
                max_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
            window_bytes: WINDOW_BYTES,
            hold_bytes,
            congestion: algorithm,
        };
        let mut end = End {
            qp: RcQp::new(config).expect("memory"),
            host,
            work,
            sent_end: Psn::new(0),
            completed: 0,
            heard: Time(0),
            silence: Duration::ZERO,
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
            max_rd_atomic: POSTED as u8,
            max_dest_rd_atomic: POSTED as u8,
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
        end
    }

    fn post(&mut self, now: Time) {
        let sges = [Sge {
            addr: BASE,
            length: self.work.bytes(),
            lkey: urxe_proto::ids::LKey(KEY),
        }];
        let (addr, rkey) = (BASE, RKey(KEY));
        let wr = SendWr {
            wr_id: 0,
            op: match self.work {
                Work::Write => SendOp::Write { addr, rkey },
                Work::Read(_) => SendOp::Read { addr, rkey },
            },
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        self.qp
            .post_send(&wr, now, &mut self.host)
            .expect("there is room");
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
            self.qp.congestion_met(now, &packet);
        }
        self.silence = self.silence.max(now.since(self.heard));
        self.heard = now;
        while self.host.sends.pop_front().is_some() {
            self.completed += 1;
            self.post(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(name: &str, algorithm: Algorithm) -> f64 {
        let case = CASES.into_iter().find(|case| case.name == name).unwrap();
        run(&case, algorithm, true, Work::Write).used
    }

    #[test]
    fn a_link_without_faults_is_used_whole() {
        for algorithm in Algorithm::ALL {
            assert!(used("25 Gbit/s, 60 us", algorithm) > 0.9, "{algorithm}");
        }
    }

    #[test]
    fn where_a_packet_in_a_hundred_is_lost_round_trips_tell_that_it_was_chance() {
        assert!(used("loss 1%", Algorithm::Delay) > 0.5);
        assert!(used("loss 1%", Algorithm::Loss) > 0.2);
    }

    #[test]
    fn small_queues_and_many_senders_do_not_collapse() {
        for name in [
            "the same, 16 senders",
            "switch queue of 20 packets",
            "the same, 8 senders",
        ] {
            assert!(used(name, Algorithm::default()) > 0.6, "{name}");
        }
    }
}
