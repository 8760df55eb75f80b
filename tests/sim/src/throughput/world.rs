//! The link, its queue, and the packets in flight.

use super::case::{Case, Work};
use super::endpoint::{Endpoint, OUT_OF_ORDER_BYTES};
use super::outcome::Outcome;
use crate::rng::Rng;
use crate::sink::Sink;
use rand::{RngExt, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;
use urxe_proto::rc::congestion::Algorithm;
use urxe_proto::time::Time;
use urxe_proto::wire::Packet;

/// A packet in flight: its arrival time, a number that breaks ties, the index of the receiving end,
/// its bytes, and whether it is marked.
type InFlight = Reverse<(Time, u64, usize, Vec<u8>, bool)>;

pub(super) struct World {
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

impl World {
    pub(super) fn new(
        case: Case,
        algorithm: Algorithm,
        keeps_out_of_order: bool,
        work: Work,
    ) -> Self {
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

    pub(super) fn run(&mut self) {
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
        let mut sink = Sink::new(self.now, usize::MAX);
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
        let mut at = leaves + half;
        if self.case.reorder > 0.0 && self.rng.random_bool(self.case.reorder) {
            at = at + self.case.late.mul_f64(self.rng.random());
        }
        self.in_flight
            .push(Reverse((at, self.number, to, packet, marked)));
    }

    pub(super) fn outcome(&self) -> Outcome {
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
