//! One direction of a path between two endpoints: it loses, duplicates, reorders, delays, damages
//! and, when its queue is full, drops datagrams.

use crate::limits::{Fault, Limits};
use crate::rng::{Rng, Scripted};
use rand::RngExt;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use urxe_proto::icrc::{Flow, FlowIcrc, IpId};
use urxe_proto::psn::Psn;
use urxe_proto::time::Time;
use urxe_proto::wire::{Operation, Packet};

/// How bad a link is. Probabilities are per datagram.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Lost.
    pub loss: f64,
    /// Lost, with all that follow within a time.
    pub burst: f64,
    /// Lost, with all that follow within a longer time.
    pub partition: f64,
    /// Delivered twice.
    pub duplicate: f64,
    /// Delivered later than those behind it.
    pub reorder: f64,
    /// One or several bits flipped, or the end cut off.
    pub corrupt: f64,
    /// How long each datagram takes.
    pub delay: Duration,
    /// How much later those that are reordered come.
    pub late: Duration,
    /// What sending a byte takes, in nanoseconds.
    pub ns_per_byte: f64,
    /// How many datagrams may wait; those beyond are lost.
    pub queue: usize,
    /// From how many that wait on a datagram is marked as having met congestion.
    pub mark: usize,
}

impl Faults {
    /// Whether everything arrives, and in order.
    pub fn are_none(&self) -> bool {
        [
            self.loss,
            self.burst,
            self.partition,
            self.duplicate,
            self.reorder,
            self.corrupt,
        ] == [0.0; 6]
    }

    /// Those of them that are allowed.
    pub fn within(self, limits: &Limits) -> Self {
        let often = |fault, often| if limits.allow(fault) { often } else { 0.0 };
        Faults {
            loss: often(Fault::Loss, self.loss),
            burst: often(Fault::Burst, self.burst),
            partition: often(Fault::Partition, self.partition),
            duplicate: often(Fault::Duplicate, self.duplicate),
            reorder: often(Fault::Reorder, self.reorder),
            corrupt: often(Fault::Corrupt, self.corrupt),
            ns_per_byte: often(Fault::Bandwidth, self.ns_per_byte),
            queue: match limits.allow(Fault::Queue) {
                true => self.queue,
                false => usize::MAX,
            },
            mark: match limits.allow(Fault::Mark) {
                true => self.mark,
                false => usize::MAX,
            },
            ..self
        }
    }
}

/// A link as bad as chance has it; one that only delays unless `bad`.
pub fn faults(rng: &mut Rng, bad: bool) -> Faults {
    let us = Duration::from_micros;
    let mut often = |choices: [f64; 4]| match bad {
        true => choices[rng.random_range(0..4)],
        false => 0.0,
    };
    Faults {
        loss: often([0.0, 0.0, 0.02, 0.1]),
        burst: often([0.0, 0.0, 0.0, 0.005]),
        partition: often([0.0, 0.0, 0.0, 0.000_3]),
        duplicate: often([0.0, 0.0, 0.02, 0.3]),
        reorder: often([0.0, 0.0, 0.02, 0.3]),
        corrupt: often([0.0, 0.0, 0.01, 0.1]),
        delay: us([1, 20, 500][rng.random_range(0..3)]),
        late: us([10, 300, 3000][rng.random_range(0..3)]),
        ns_per_byte: [0.0, 0.2, 2.0][rng.random_range(0..3)],
        queue: [8, 64, 1000][rng.random_range(0..3)],
        mark: usize::MAX,
    }
}

/// The longest run of losses.
const LONGEST_BURST: Duration = Duration::from_millis(2);

/// The longest that nothing gets through: less than a requester waits before it gives up.
const LONGEST_PARTITION: Duration = Duration::from_millis(200);

/// A script does not lose more than this one after the other, or it would soon use up every retry.
const MOST_IN_A_ROW: u32 = 2;

/// What is under way: when it arrives, a number that keeps ties in order, its bytes, and whether it
/// met congestion.
type Flying = Reverse<(Time, u64, Vec<u8>, bool)>;

/// The PSN of a READ response, in a datagram of any kind.
fn read_response(datagram: &[u8]) -> Option<Psn> {
    let header = Packet::parse(datagram).ok()?.header;
    let is_one = header.bth.opcode.info().operation == Operation::ReadResponse;
    is_one.then_some(header.bth.psn)
}

/// What came out of a link.
#[derive(Debug)]
pub struct Arrival {
    /// The packet, the ICRC taken off; `None` if that was wrong.
    pub packet: Option<Vec<u8>>,
    /// Whether it met congestion.
    pub marked: bool,
}

/// One direction.
#[derive(Debug)]
pub struct Link {
    faults: Faults,
    icrc: FlowIcrc,
    is_v4: bool,
    rng: Scripted,
    flying: BinaryHeap<Flying>,
    busy_until: Time,
    burst_until: Time,
    lost_in_a_row: u32,
    number: u64,
    bounds_reordering: bool,
    /// The numbers of what does not arrive because a repeated response overtook it.
    overtaken: HashSet<u64>,
    /// Damaged datagrams whose ICRC was right nevertheless, as must happen to one in 2^16.
    pub undetected: u64,
    /// Damaged datagrams.
    pub damaged: u64,
    /// Times that nothing got through.
    pub partitions: u64,
    /// Datagrams lost because the queue was full.
    pub overflowed: u64,
}

impl Link {
    /// An idle link.
    pub fn new(faults: Faults, is_v4: bool, rng: Scripted) -> Self {
        let flow = if is_v4 {
            Flow::V4 {
                src: Ipv4Addr::new(192, 0, 2, 1),
                dst: Ipv4Addr::new(192, 0, 2, 2),
                src_port: 0xc001,
                dst_port: urxe_proto::wire::UDP_PORT,
            }
        } else {
            Flow::V6 {
                src: Ipv6Addr::LOCALHOST,
                dst: Ipv6Addr::LOCALHOST,
                src_port: 0xc001,
                dst_port: urxe_proto::wire::UDP_PORT,
            }
        };
        Link {
            faults,
            icrc: FlowIcrc::new(&flow),
            is_v4,
            rng,
            flying: BinaryHeap::new(),
            busy_until: Time(0),
            burst_until: Time(0),
            lost_in_a_row: 0,
            number: 0,
            bounds_reordering: false,
            overtaken: HashSet::new(),
            undetected: 0,
            damaged: 0,
            overflowed: 0,
            partitions: 0,
        }
    }

    /// Whether nothing arrives twice, nor before what was sent before it.
    pub fn keeps_order(&self) -> bool {
        self.faults.duplicate == 0.0 && self.faults.reorder == 0.0
    }

    /// From now on a READ response is lost if one that was sent later, for an earlier PSN, arrives
    /// before it.
    ///
    /// That other one answers a repeated request, which was sent when the peer had packets from
    /// behind the first one's place: the network would have been late by more than a round trip. A
    /// response has no mark by which a requester could tell the result of the first execution from
    /// that of the second, and the specification assumes a fabric that does not reorder. So where
    /// the age of data is checked, links reorder by less.
    pub fn bound_reordering(&mut self) {
        self.bounds_reordering = true;
    }

    /// Marks what the datagram that arrives then overtakes.
    fn mark_overtaken(&mut self, arrives: Time, datagram: &[u8]) {
        let Some(psn) = read_response(datagram) else {
            return;
        };
        for Reverse((at, number, flying, _)) in &self.flying {
            if *at > arrives && read_response(flying).is_some_and(|other| other.after(psn)) {
                self.overtaken.insert(*number);
            }
        }
    }

    /// Seals `packet` and sends it.
    pub fn send(&mut self, now: Time, packet: &[u8]) {
        let id = IpId {
            id: if self.is_v4 { self.rng.random() } else { 0 },
            dont_fragment: true,
        };
        let mut datagram = packet.to_vec();
        datagram.extend_from_slice(&self.icrc.compute(id, packet));
        if self.flying.len() >= self.faults.queue {
            self.overflowed += 1;
            return;
        }
        let marked = self.flying.len() >= self.faults.mark;
        let copies = 1 + u32::from(self.rng.random_bool(self.faults.duplicate));
        for _ in 0..copies {
            let mut copy = datagram.clone();
            let must_arrive = self.rng.is_told() && self.lost_in_a_row >= MOST_IN_A_ROW;
            if self.loses(now) && !must_arrive {
                self.lost_in_a_row += 1;
                continue;
            }
            if self.rng.random_bool(self.faults.corrupt) && !must_arrive {
                self.lost_in_a_row += 1;
                self.damage(&mut copy);
                if self.accepts(&copy) {
                    self.undetected += 1;
                    continue;
                }
            } else {
                self.lost_in_a_row = 0;
            }
            let takes = (copy.len() as f64 * self.faults.ns_per_byte) as u64;
            self.busy_until = self.busy_until.max(now) + Duration::from_nanos(takes);
            let mut arrives = self.busy_until + self.faults.delay;
            if self.rng.random_bool(self.faults.reorder) {
                let late = self
                    .rng
                    .random_range(0..=self.faults.late.as_nanos() as u64);
                arrives = arrives + Duration::from_nanos(late);
            }
            if self.bounds_reordering && !self.keeps_order() {
                self.mark_overtaken(arrives, &copy);
            }
            self.number += 1;
            self.flying
                .push(Reverse((arrives, self.number, copy, marked)));
        }
    }

    /// Whether what is sent now does not arrive.
    fn loses(&mut self, now: Time) -> bool {
        if self.rng.random_bool(self.faults.burst) {
            let length = self.rng.random_range(0..=LONGEST_BURST.as_nanos() as u64);
            self.burst_until = now + Duration::from_nanos(length);
        }
        if self.rng.random_bool(self.faults.partition) {
            let length = self
                .rng
                .random_range(0..=LONGEST_PARTITION.as_nanos() as u64);
            self.burst_until = self.burst_until.max(now + Duration::from_nanos(length));
            self.partitions += 1;
        }
        now < self.burst_until || self.rng.random_bool(self.faults.loss)
    }

    fn damage(&mut self, datagram: &mut Vec<u8>) {
        self.damaged += 1;
        match self.rng.random_range(0..4) {
            0 => datagram.truncate(self.rng.random_range(0..datagram.len())),
            1 => {
                let at = self.rng.random_range(0..datagram.len());
                let end = (at + 8).min(datagram.len());
                datagram[at..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
            _ => {
                let at = self.rng.random_range(0..datagram.len());
                // The byte that the ICRC leaves out (A17.3.3) may change on the way.
                let at = if at == 4 { 5 } else { at };
                datagram[at] ^= 1 << self.rng.random_range(0..8);
            }
        }
    }

    fn accepts(&self, datagram: &[u8]) -> bool {
        let guess = IpId {
            id: 0,
            dont_fragment: true,
        };
        self.icrc.verify_known_sender(datagram, guess).is_ok()
    }

    /// When the next datagram arrives.
    pub fn next_arrival(&self) -> Time {
        match self.flying.peek() {
            Some(Reverse((at, ..))) => *at,
            None => Time::NEVER,
        }
    }

    /// Takes a datagram that has arrived by `now`.
    pub fn arrived(&mut self, now: Time) -> Option<Arrival> {
        let (mut datagram, marked) = loop {
            if self.next_arrival() > now {
                return None;
            }
            let Reverse((_, number, datagram, marked)) = self.flying.pop()?;
            if !self.overtaken.remove(&number) {
                break (datagram, marked);
            }
        };
        let packet = self.accepts(&datagram).then(|| {
            datagram.truncate(datagram.len() - urxe_proto::icrc::LEN);
            datagram
        });
        Some(Arrival { packet, marked })
    }
}
