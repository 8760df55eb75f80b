//! One direction of a path between two endpoints. It loses, duplicates, reorders, delays and
//! damages datagrams, and drops them when its queue is full.

use crate::limits::{Fault, Limits};
use crate::rng::{Rng, ScriptedRng};
use rand::RngExt;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use urxe_proto::icrc::{Flow, FlowIcrc, IpId};
use urxe_proto::psn::Psn;
use urxe_proto::time::Time;
use urxe_proto::wire::{Operation, Packet};

/// The faults of a link. Probabilities are per datagram.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The probability of a single loss.
    pub loss: f64,
    /// The probability that a loss of all datagrams begins, of up to `MAX_BURST`.
    pub burst: f64,
    /// The probability that a longer loss of all datagrams begins, of up to `MAX_PARTITION`.
    pub partition: f64,
    /// The probability of a duplicate.
    pub duplicate: f64,
    /// The probability of a late delivery, behind later datagrams.
    pub reorder: f64,
    /// The probability of damage: flipped bits or truncation.
    pub corrupt: f64,
    /// The propagation delay.
    pub delay: Duration,
    /// The maximum extra delay of a reordered datagram.
    pub late: Duration,
    /// The serialization time per byte, in nanoseconds.
    pub ns_per_byte: f64,
    /// The size of the queue in datagrams; further ones are dropped.
    pub queue: usize,
    /// The queue length from which datagrams are marked (ECN).
    pub mark: usize,
}

impl Faults {
    /// Whether all datagrams arrive, in order.
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

    /// Returns these faults without those that `limits` disable.
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

/// Returns random faults; without `bad`, only delays and a finite queue.
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

/// The maximum length of a burst of losses.
const MAX_BURST: Duration = Duration::from_millis(2);

/// The maximum length of a partition: less than the time after which a requester gives up.
const MAX_PARTITION: Duration = Duration::from_millis(200);

/// The maximum number of consecutive losses with a script. More would soon exhaust the retries.
const MAX_CONSECUTIVE_LOSSES: u32 = 2;

/// A datagram in flight: its arrival time, a number that breaks ties, its bytes, and whether it is
/// marked.
type InFlight = Reverse<(Time, u64, Vec<u8>, bool)>;

/// Returns the PSN if the datagram is a READ response.
fn read_response(datagram: &[u8]) -> Option<Psn> {
    let header = Packet::parse(datagram).ok()?.header;
    let is_one = header.bth.opcode.info().operation == Operation::ReadResponse;
    is_one.then_some(header.bth.psn)
}

/// A datagram that leaves the link.
#[derive(Debug)]
pub struct Arrival {
    /// The packet without its ICRC; `None` if the ICRC was wrong.
    pub packet: Option<Vec<u8>>,
    /// Whether it is marked (ECN).
    pub marked: bool,
}

/// One direction of a path.
#[derive(Debug)]
pub struct Link {
    faults: Faults,
    icrc: FlowIcrc,
    is_v4: bool,
    rng: ScriptedRng,
    in_flight: BinaryHeap<InFlight>,
    busy_until: Time,
    burst_until: Time,
    consecutive_losses: u32,
    number: u64,
    drops_overtaken: bool,
    /// The numbers of datagrams that are dropped because a repeated response overtook them.
    overtaken: HashSet<u64>,
    /// Damaged datagrams with a correct ICRC, which has a probability of 2^-16.
    pub undetected: u64,
    /// Damaged datagrams.
    pub damaged: u64,
    /// Partitions.
    pub partitions: u64,
    /// Datagrams dropped because the queue was full.
    pub overflowed: u64,
}

impl Link {
    /// Returns an idle link.
    pub fn new(faults: Faults, is_v4: bool, rng: ScriptedRng) -> Self {
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
            in_flight: BinaryHeap::new(),
            busy_until: Time(0),
            burst_until: Time(0),
            consecutive_losses: 0,
            number: 0,
            drops_overtaken: false,
            overtaken: HashSet::new(),
            undetected: 0,
            damaged: 0,
            overflowed: 0,
            partitions: 0,
        }
    }

    /// Whether the link neither duplicates nor reorders.
    pub fn preserves_order(&self) -> bool {
        self.faults.duplicate == 0.0 && self.faults.reorder == 0.0
    }

    /// Bounds the reordering: drops a READ response if one that was sent later, for an earlier PSN,
    /// arrives before it.
    ///
    /// The later response answers a repeated request. The peer sent that after packets from behind
    /// the first response had arrived, so the first one would be late by more than a round trip. A
    /// response does not tell the result of the first execution from that of the second, and the
    /// specification assumes a fabric that does not reorder. So where the age of data is checked,
    /// links reorder by less.
    pub fn bound_reordering(&mut self) {
        self.drops_overtaken = true;
    }

    /// Records the datagrams that a datagram arriving at `arrives` overtakes.
    fn mark_overtaken(&mut self, arrives: Time, datagram: &[u8]) {
        let Some(psn) = read_response(datagram) else {
            return;
        };
        for Reverse((at, number, in_flight, _)) in &self.in_flight {
            if *at > arrives && read_response(in_flight).is_some_and(|other| other.after(psn)) {
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
        if self.in_flight.len() >= self.faults.queue {
            self.overflowed += 1;
            return;
        }
        let marked = self.in_flight.len() >= self.faults.mark;
        let copies = 1 + u32::from(self.rng.random_bool(self.faults.duplicate));
        for _ in 0..copies {
            let mut copy = datagram.clone();
            let must_arrive =
                self.rng.has_script() && self.consecutive_losses >= MAX_CONSECUTIVE_LOSSES;
            if self.is_lost(now) && !must_arrive {
                self.consecutive_losses += 1;
                continue;
            }
            if self.rng.random_bool(self.faults.corrupt) && !must_arrive {
                self.consecutive_losses += 1;
                self.damage(&mut copy);
                if self.accepts(&copy) {
                    self.undetected += 1;
                    continue;
                }
            } else {
                self.consecutive_losses = 0;
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
            if self.drops_overtaken && !self.preserves_order() {
                self.mark_overtaken(arrives, &copy);
            }
            self.number += 1;
            self.in_flight
                .push(Reverse((arrives, self.number, copy, marked)));
        }
    }

    /// Whether a datagram sent now is lost.
    fn is_lost(&mut self, now: Time) -> bool {
        if self.rng.random_bool(self.faults.burst) {
            let length = self.rng.random_range(0..=MAX_BURST.as_nanos() as u64);
            self.burst_until = now + Duration::from_nanos(length);
        }
        if self.rng.random_bool(self.faults.partition) {
            let length = self.rng.random_range(0..=MAX_PARTITION.as_nanos() as u64);
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
                // The ICRC does not cover this byte (A17.3.3), which may change in transit.
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

    /// Calls `visit` for each undamaged packet in flight.
    pub fn visit_in_flight(&self, mut visit: impl FnMut(&Packet<'_>)) {
        for Reverse((_, number, datagram, _)) in &self.in_flight {
            let packet = &datagram[..datagram.len().saturating_sub(urxe_proto::icrc::LEN)];
            if self.accepts(datagram)
                && !self.overtaken.contains(number)
                && let Ok(packet) = Packet::parse(packet)
            {
                visit(&packet);
            }
        }
    }

    /// The time at which the next datagram arrives.
    pub fn next_arrival(&self) -> Time {
        match self.in_flight.peek() {
            Some(Reverse((at, ..))) => *at,
            None => Time::NEVER,
        }
    }

    /// Returns a datagram that has arrived by `now`.
    pub fn arrived(&mut self, now: Time) -> Option<Arrival> {
        let (mut datagram, marked) = loop {
            if self.next_arrival() > now {
                return None;
            }
            let Reverse((_, number, datagram, marked)) = self.in_flight.pop()?;
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
