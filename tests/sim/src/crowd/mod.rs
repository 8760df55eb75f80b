//! The many-QP scenario: hosts with many queue pairs, for reliable connections, unreliable
//! connections and datagrams. The queue pairs of a host share its receives. Connections fail at
//! random times, and are replaced.
//!
//! Each message carries its sender, its receiver and its number. So the harness checks the
//! guarantees of each service:
//!
//! - Reliable connection: each message arrives exactly once, in order. A message whose send
//!   completed successfully has arrived.
//! - Unreliable connection: messages may be lost. None arrives twice or out of order, unless the
//!   network duplicates or reorders packets.
//! - Datagrams: any of those sent.
//!
//! For all of them, every message arrives unmodified, at the endpoint that it was sent to.

mod end;
mod message;
mod population;

use crate::host::SimHost;
use crate::limits::Limits;
use crate::link::Link;
use crate::rng::Rng;
use crate::sink::Sink;
use end::{End, QKEY, Qp, Wiring};
use message::{Name, SHORTEST};
use rand::RngExt;
use std::collections::VecDeque;
use std::time::Duration;
use urxe_proto::ids::{Gid, LKey, Qpn, RKey};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AttrMask, QpAttr, QpState, QpType};
use urxe_proto::queue::PostError;
use urxe_proto::time::Time;
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Packet;
use urxe_proto::work::{
    Completion, Destination, Extra, Payload, SendFlags, SendOp, SendWr, Sge, UdDestination,
    WcOpcode, WcStatus,
};

/// The maximum length of a run in virtual time, and the maximum number of its events.
const LONGEST: Duration = Duration::from_secs(600);
const MOST_EVENTS: u64 = 3_000_000;

/// The maximum length of a message; below, the space before a datagram's payload (11.4.1.2).
const ROOM: usize = 4096;
/// The maximum number of messages executed at once: the missing one, and those queued behind it.
const PLACES: usize = end::HOLD as usize + 1;
const GRH: usize = 40;

/// Keys of a host's regions, for receives and for WRITEs. Each endpoint has its places in both.
const RECEIVE: u32 = 1;
const TARGET: u32 = 2;
/// The start address of a region.
const fn base(key: u32) -> u64 {
    (key as u64) << 32
}

/// The counts of a run, or of many.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stats {
    /// Messages received over reliable connections.
    pub reliable: u64,
    /// Messages received over unreliable connections.
    pub unreliable: u64,
    /// Messages lost over unreliable connections.
    pub lost: u64,
    /// Datagrams received, including duplicates.
    pub datagrams: u64,
    /// Connections that failed and were replaced.
    pub failures: u64,
    /// Work requests that were flushed.
    pub flushed: u64,
    /// Packets for queue pairs that no longer exist.
    pub strays: u64,
    /// Packets dropped for a wrong ICRC.
    pub bad_icrc: u64,
    /// The virtual time of the run.
    pub time: Duration,
}

impl crate::seeds::Stats for Stats {
    fn add(&mut self, other: &Stats) {
        self.reliable += other.reliable;
        self.unreliable += other.unreliable;
        self.lost += other.lost;
        self.datagrams += other.datagrams;
        self.failures += other.failures;
        self.flushed += other.flushed;
        self.strays += other.strays;
        self.bad_icrc += other.bad_icrc;
        self.time += other.time;
    }
}

/// Runs `seed` to its end within `limits`. With `trace`, prints the events.
///
/// # Panics
/// When a guarantee is violated.
pub fn run(seed: u64, limits: &Limits, trace: bool) -> Stats {
    let mut world = World::new(seed, limits, trace);
    world.run();
    world.stats
}

/// A host, with everything that its queue pairs share.
struct Host {
    inner: SimHost,
    /// The numbers of the receives that are not posted.
    free: Vec<u64>,
    /// The time at which its program posts them.
    receive_at: Time,
    /// The time at which its queue pairs are polled for packets to send.
    poll_at: Time,
}

struct World {
    hosts: Vec<Host>,
    ends: Vec<End>,
    /// The link from each host to each host.
    links: Vec<Vec<Link>>,
    mtu: Mtu,
    longest: usize,
    /// The probability that a program makes its connection fail when it posts.
    failing: f64,
    next_qpn: u32,
    now: Time,
    rng: Rng,
    trace: bool,
    stats: Stats,
}

fn gid(host: usize) -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, host as u8 + 1).into())
}

impl World {
    fn run(&mut self) {
        for event in 0.. {
            let next = self.next();
            if next == Time::NEVER {
                break;
            }
            self.now = self.now.max(next);
            let late = self.now.since(Time(0)) > LONGEST;
            assert!(
                event < MOST_EVENTS && !late,
                "no end in sight at {:?}",
                self.now
            );
            for to in 0..self.hosts.len() {
                self.deliver(to);
            }
            for end in 0..self.ends.len() {
                self.turn(end);
            }
            for host in 0..self.hosts.len() {
                self.turn_of_host(host);
            }
        }
        self.check_end();
        self.stats.time = self.now.since(Time(0));
    }

    fn next(&self) -> Time {
        let links = self.links.iter().flatten().map(Link::next_arrival);
        let ends = self
            .ends
            .iter()
            .map(|end| end.qp.deadline().min(end.post_at));
        let hosts = self
            .hosts
            .iter()
            .map(|host| host.poll_at.min(host.receive_at));
        links.chain(ends).chain(hosts).fold(Time::NEVER, Time::min)
    }

    fn check_end(&self) {
        for (index, end) in self.ends.iter().enumerate() {
            assert!(
                end.left == 0 && end.outstanding.is_empty(),
                "all is quiet at {:?}, and end {index} has {} to post and {} to complete",
                self.now,
                end.left,
                end.outstanding.len()
            );
            if end.service == QpType::Rc {
                let sent = self.ends[end.peer].posted;
                assert_eq!(end.expected, sent, "end {index} has not got all");
            }
        }
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>12.3} us  {}", self.now.0 as f64 / 1e3, what());
        }
    }

    /// Delivers the packets that have arrived at a host.
    fn deliver(&mut self, to: usize) {
        for from in 0..self.hosts.len() {
            while let Some(arrival) = self.links[from][to].arrived(self.now) {
                let Some(bytes) = arrival.packet else {
                    self.stats.bad_icrc += 1;
                    continue;
                };
                let packet = Packet::parse(&bytes).expect("what an end sends is well-formed");
                let qpn = packet.header.bth.dest_qp;
                let end = self.ends.iter().position(|end| end.qp.qpn() == qpn);
                let Some(end) = end.filter(|&end| self.ends[end].host == to) else {
                    self.stats.strays += 1;
                    continue;
                };
                self.tell(|| {
                    let bth = &packet.header.bth;
                    format!("end {end} gets {} {}", bth.psn, bth.opcode.info().name)
                });
                let network = NetworkHeader {
                    source: gid(from),
                    destination: gid(to),
                    traffic_class: 0,
                    flow_label: 0,
                    hop_limit: 64,
                };
                let host = &mut self.hosts[to];
                self.ends[end]
                    .qp
                    .handle(self.now, &network, &packet, &mut host.inner);
                host.poll_at = host.poll_at.min(self.now + Duration::from_nanos(500));
                self.check(to);
            }
        }
    }

    /// Runs the due timers and the program of an endpoint.
    fn turn(&mut self, index: usize) {
        let now = self.now;
        let end = &mut self.ends[index];
        let host = end.host;
        if end.qp.deadline() <= now {
            end.qp.handle_timeout(now, &mut self.hosts[host].inner);
            self.hosts[host].poll_at = now;
            self.check(host);
        }
        if self.ends[index].post_at <= now {
            let connected = self.ends[index].service != QpType::Ud;
            if connected && self.ends[index].left > 0 && self.rng.random_bool(self.failing) {
                self.fail(index);
            }
            self.post(index);
            self.hosts[host].poll_at = now;
            self.check(host);
        }
    }

    /// Posts some messages.
    fn post(&mut self, index: usize) {
        let pause = Duration::from_nanos(self.rng.random_range(1_000..300_000));
        for _ in 0..self.rng.random_range(1..5) {
            let end = &self.ends[index];
            if end.left == 0 {
                self.ends[index].post_at = Time::NEVER;
                return;
            }
            let (service, number) = (end.service, end.posted);
            let to = match service {
                QpType::Ud => self.any_datagram_end(),
                _ => end.peer,
            };
            let most = match service {
                QpType::Ud => self.longest.min(self.mtu.bytes()),
                _ => self.longest,
            };
            let len = self.rng.random_range(SHORTEST..=most.max(SHORTEST));
            let name = Name {
                from: index as u32,
                to: to as u32,
                number,
            };
            let write = service != QpType::Ud && self.rng.random_bool(0.3);
            let op = match write {
                true => SendOp::WriteImm {
                    addr: base(TARGET) + place_of(to, number) as u64,
                    rkey: RKey(TARGET),
                    imm: number,
                },
                false => SendOp::SendImm(number),
            };
            let message = name.message(len);
            let wr = SendWr {
                wr_id: u64::from(number),
                op,
                flags: SendFlags::SIGNALED,
                payload: Payload::Inline(&message),
                dest: (service == QpType::Ud).then(|| {
                    Destination::Datagram(UdDestination {
                        handle: self.ends[to].host as u64,
                        qpn: self.ends[to].qp.qpn(),
                        qkey: QKEY,
                    })
                }),
            };
            let end = &mut self.ends[index];
            let host = &mut self.hosts[end.host].inner;
            match end.qp.post(&wr, self.now, host) {
                Ok(()) => {}
                Err(PostError::Full) => break,
                Err(error) => panic!("end {index} posting {name:?}: {error}"),
            }
            end.outstanding.push_back(number);
            end.posted += 1;
            end.left -= 1;
        }
        self.ends[index].post_at = self.now + pause;
    }

    fn any_datagram_end(&mut self) -> usize {
        let ends: Vec<usize> = (0..self.ends.len())
            .filter(|&end| self.ends[end].service == QpType::Ud)
            .collect();
        ends[self.rng.random_range(0..ends.len())]
    }

    /// Moves both queue pairs of a connection to the error state, and replaces them.
    fn fail(&mut self, index: usize) {
        let pair = [index, self.ends[index].peer];
        self.tell(|| format!("the connection of ends {pair:?} fails"));
        self.stats.failures += 1;
        for end in pair {
            let end = &mut self.ends[end];
            let host = end.host;
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            end.qp.modify(
                &attr,
                AttrMask::empty(),
                self.now,
                &mut self.hosts[host].inner,
            );
            self.check(host);
        }
        for end in pair {
            let outstanding = &self.ends[end].outstanding;
            assert!(
                outstanding.is_empty(),
                "end {end} flushed not all: {outstanding:?}"
            );
        }
        let service = self.ends[index].service;
        let qps = self.connect(service, pair.map(|end| self.ends[end].host));
        for (end, qp) in pair.into_iter().zip(qps) {
            // Flushed messages may or may not have arrived; they will not arrive any more.
            let peer = self.ends[end].peer;
            self.ends[end].expected = self.ends[peer].posted;
            self.ends[end].qp = qp;
        }
    }

    /// Posts the receives of a host, and sends for its endpoints.
    fn turn_of_host(&mut self, index: usize) {
        let now = self.now;
        let host = &mut self.hosts[index];
        if host.receive_at <= now {
            host.receive_at = Time::NEVER;
            for slot in host.free.drain(..) {
                let sge = Sge {
                    addr: base(RECEIVE) + slot * (GRH + ROOM) as u64,
                    length: (GRH + ROOM) as u32,
                    lkey: LKey(RECEIVE),
                };
                host.inner
                    .receives
                    .post(slot, &[sge])
                    .expect("there is room");
            }
        }
        if host.poll_at > now {
            return;
        }
        host.poll_at = Time::NEVER;
        for end in 0..self.ends.len() {
            if self.ends[end].host == index && self.send(end) {
                self.hosts[index].poll_at = now + Duration::from_micros(2);
            }
        }
        self.check(index);
    }

    /// Polls an endpoint once for packets. Returns whether there are more.
    fn send(&mut self, index: usize) -> bool {
        let room = [1, 4, 64][self.rng.random_range(0..3)];
        let end = &self.ends[index];
        let from = end.host;
        let to = match end.qp.next_destination() {
            Some(handle) => handle as usize,
            None => self.ends[end.peer].host,
        };
        let mut sink = Sink::new(self.now, room);
        let host = &mut self.hosts[from].inner;
        let more = self.ends[index].qp.poll(self.now, host, &mut sink);
        for packet in sink.packets {
            self.tell(|| {
                let packet = Packet::parse(&packet).expect("what an end sends is well-formed");
                let bth = &packet.header.bth;
                format!("end {index} sends {} {}", bth.psn, bth.opcode.info().name)
            });
            self.links[from][to].send(self.now, &packet);
        }
        more
    }

    /// Checks the completions of a host.
    fn check(&mut self, host: usize) {
        while let Some(completion) = self.hosts[host].inner.sends.pop_front() {
            self.check_send(&completion);
        }
        while let Some((completion, ..)) = self.hosts[host].inner.receptions.pop_front() {
            self.check_reception(host, &completion);
            let host = &mut self.hosts[host];
            assert!(
                !host.free.contains(&completion.wr_id),
                "a receive completes twice"
            );
            host.free.push(completion.wr_id);
            let pause = Duration::from_nanos(self.rng.random_range(0..50_000));
            host.receive_at = host.receive_at.min(self.now + pause);
        }
        self.hosts[host].inner.events.clear();
    }

    fn end_of(&self, qpn: Qpn) -> usize {
        let end = self.ends.iter().position(|end| end.qp.qpn() == qpn);
        end.expect("a queue pair that is no more completes nothing")
    }

    fn check_send(&mut self, completion: &Completion) {
        let index = self.end_of(completion.qpn);
        let end = &mut self.ends[index];
        let number = end.outstanding.pop_front().expect("as many as were posted");
        assert_eq!(
            completion.wr_id,
            u64::from(number),
            "end {index}: the order of posting"
        );
        match completion.status {
            WcStatus::Success if end.service == QpType::Rc => {
                let peer = end.peer;
                let arrived = self.ends[peer].expected > number;
                assert!(
                    arrived,
                    "end {index}: message {number} is done, but has not arrived"
                );
            }
            WcStatus::Success => {}
            WcStatus::WrFlushErr if end.qp.state() == QpState::Err => self.stats.flushed += 1,
            status => panic!("end {index}: message {number} ended with {status:?}"),
        }
    }

    fn check_reception(&mut self, host: usize, completion: &Completion) {
        let index = self.end_of(completion.qpn);
        let end = &self.ends[index];
        assert_eq!(end.host, host);
        match completion.status {
            WcStatus::Success => {}
            // A receive held by a message that did not complete.
            WcStatus::WrFlushErr if end.qp.state() == QpState::Err => return,
            status => panic!("end {index}: a receive ended with {status:?}"),
        }
        let slot = completion.wr_id as usize * (GRH + ROOM);
        let len = completion.byte_len as usize;
        let (region, place) = match (completion.opcode, completion.extra, completion.grh) {
            (WcOpcode::RecvWriteImm, Extra::Imm(number), _) => {
                let place = place_of(index, number);
                (1, place..place + len)
            }
            (_, _, Some(_)) => (0, slot + GRH..slot + len),
            (_, _, None) => (0, slot..slot + len),
        };
        let bytes = self.hosts[host].inner.regions[region].bytes.borrow();
        let name = Name::of(&bytes[place]);
        drop(bytes);
        assert_eq!(name.to, index as u32, "{name:?} came to end {index}");
        assert_eq!(completion.extra, Extra::Imm(name.number), "{name:?}");
        self.tell(|| format!("end {index} has {name:?}"));
        let sender = &self.ends[name.from as usize];
        assert!(name.number < sender.posted, "{name:?} was never sent");
        let keeps_order = self.links[sender.host][host].keeps_order();
        let end = &mut self.ends[index];
        match end.service {
            QpType::Rc => {
                assert_eq!(
                    name.number, end.expected,
                    "end {index}: each once and in order"
                );
                self.stats.reliable += 1;
            }
            // The service does not detect duplicates and reordering, which the network must not
            // cause (9.8.2.2).
            QpType::Uc => {
                let in_order = name.number >= end.expected;
                assert!(
                    in_order || !keeps_order,
                    "end {index}: {name:?} is late, or comes twice"
                );
                self.stats.lost += u64::from(name.number.saturating_sub(end.expected));
                self.stats.unreliable += 1;
            }
            _ => {
                assert_eq!(sender_qpn(&self.ends, name), completion.src_qp, "{name:?}");
                self.stats.datagrams += 1;
                return;
            }
        }
        end.expected = end.expected.max(name.number + 1);
    }
}

/// Returns the offset of a message to an endpoint in the region for WRITEs. Messages behind a
/// missing one may be executed together with it, before the program checks any of them; so each has
/// a place.
fn place_of(to: usize, number: u32) -> usize {
    (to * PLACES + number as usize % PLACES) * ROOM
}

/// Returns the QPN of a datagram's sender. Datagram queue pairs are never replaced.
fn sender_qpn(ends: &[End], name: Name) -> Qpn {
    ends[name.from as usize].qp.qpn()
}
