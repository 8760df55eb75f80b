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

mod endpoint;
mod message;
mod setup;

use crate::host::SimHost;
use crate::limits::Limits;
use crate::link::Link;
use crate::rng::Rng;
use crate::sink::Sink;
use endpoint::{ConnectionAttributes, Endpoint, QKEY, Qp};
use message::{MIN_LEN, MessageId};
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
const MAX_RUN_TIME: Duration = Duration::from_secs(600);
const MAX_EVENTS: u64 = 3_000_000;

/// The maximum length of a message; below, the space before a datagram's payload (11.4.1.2).
const MAX_MESSAGE: usize = 4096;
/// The maximum number of messages executed at once: the missing one, and those queued behind it.
const SLOTS_PER_ENDPOINT: usize = endpoint::OUT_OF_ORDER_PACKETS as usize + 1;
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
    pub unknown_destination: u64,
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
        self.unknown_destination += other.unknown_destination;
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
    endpoints: Vec<Endpoint>,
    /// The link from each host to each host.
    links: Vec<Vec<Link>>,
    mtu: Mtu,
    longest: usize,
    /// The probability that a program makes its connection fail when it posts.
    failure_rate: f64,
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
            let late = self.now.since(Time(0)) > MAX_RUN_TIME;
            assert!(
                event < MAX_EVENTS && !late,
                "the run does not end at {:?}",
                self.now
            );
            for to in 0..self.hosts.len() {
                self.deliver(to);
            }
            for endpoint in 0..self.endpoints.len() {
                self.step(endpoint);
            }
            for host in 0..self.hosts.len() {
                self.step_host(host);
            }
        }
        self.check_end();
        self.stats.time = self.now.since(Time(0));
    }

    fn next(&self) -> Time {
        let links = self.links.iter().flatten().map(Link::next_arrival);
        let endpoints = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.qp.deadline().min(endpoint.post_at));
        let hosts = self
            .hosts
            .iter()
            .map(|host| host.poll_at.min(host.receive_at));
        links
            .chain(endpoints)
            .chain(hosts)
            .fold(Time::NEVER, Time::min)
    }

    fn check_end(&self) {
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            assert!(
                endpoint.left == 0 && endpoint.outstanding.is_empty(),
                "no event is pending at {:?}, and endpoint {index} has {} to post and {} to \
                 complete",
                self.now,
                endpoint.left,
                endpoint.outstanding.len()
            );
            if endpoint.service == QpType::Rc {
                let sent = self.endpoints[endpoint.peer].posted;
                assert_eq!(
                    endpoint.expected, sent,
                    "endpoint {index} has not received all messages"
                );
            }
        }
    }

    fn trace_event(&self, what: impl FnOnce() -> String) {
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
                let packet = Packet::parse(&bytes).expect("endpoints send well-formed packets");
                let qpn = packet.header.bth.dest_qp;
                let endpoint = self
                    .endpoints
                    .iter()
                    .position(|endpoint| endpoint.qp.qpn() == qpn);
                let Some(endpoint) =
                    endpoint.filter(|&endpoint| self.endpoints[endpoint].host == to)
                else {
                    self.stats.unknown_destination += 1;
                    continue;
                };
                self.trace_event(|| {
                    let bth = &packet.header.bth;
                    format!(
                        "endpoint {endpoint} gets {} {}",
                        bth.psn,
                        bth.opcode.info().name
                    )
                });
                let network = NetworkHeader {
                    source: gid(from),
                    destination: gid(to),
                    traffic_class: 0,
                    flow_label: 0,
                    hop_limit: 64,
                };
                let host = &mut self.hosts[to];
                self.endpoints[endpoint]
                    .qp
                    .handle(self.now, &network, &packet, &mut host.inner);
                host.poll_at = host.poll_at.min(self.now + Duration::from_nanos(500));
                self.check(to);
            }
        }
    }

    /// Runs the due timers and the program of an endpoint.
    fn step(&mut self, index: usize) {
        let now = self.now;
        let endpoint = &mut self.endpoints[index];
        let host = endpoint.host;
        if endpoint.qp.deadline() <= now {
            endpoint.qp.handle_timeout(now, &mut self.hosts[host].inner);
            self.hosts[host].poll_at = now;
            self.check(host);
        }
        if self.endpoints[index].post_at <= now {
            let connected = self.endpoints[index].service != QpType::Ud;
            if connected
                && self.endpoints[index].left > 0
                && self.rng.random_bool(self.failure_rate)
            {
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
            let endpoint = &self.endpoints[index];
            if endpoint.left == 0 {
                self.endpoints[index].post_at = Time::NEVER;
                return;
            }
            let (service, number) = (endpoint.service, endpoint.posted);
            let to = match service {
                QpType::Ud => self.any_datagram_endpoint(),
                _ => endpoint.peer,
            };
            let most = match service {
                QpType::Ud => self.longest.min(self.mtu.bytes()),
                _ => self.longest,
            };
            let len = self.rng.random_range(MIN_LEN..=most.max(MIN_LEN));
            let name = MessageId {
                from: index as u32,
                to: to as u32,
                number,
            };
            let write = service != QpType::Ud && self.rng.random_bool(0.3);
            let op = match write {
                true => SendOp::WriteImm {
                    addr: base(TARGET) + slot_offset(to, number) as u64,
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
                        handle: self.endpoints[to].host as u64,
                        qpn: self.endpoints[to].qp.qpn(),
                        qkey: QKEY,
                    })
                }),
            };
            let endpoint = &mut self.endpoints[index];
            let host = &mut self.hosts[endpoint.host].inner;
            match endpoint.qp.post(&wr, self.now, host) {
                Ok(()) => {}
                Err(PostError::Full) => break,
                Err(error) => panic!("endpoint {index} posting {name:?}: {error}"),
            }
            endpoint.outstanding.push_back(number);
            endpoint.posted += 1;
            endpoint.left -= 1;
        }
        self.endpoints[index].post_at = self.now + pause;
    }

    fn any_datagram_endpoint(&mut self) -> usize {
        let endpoints: Vec<usize> = (0..self.endpoints.len())
            .filter(|&endpoint| self.endpoints[endpoint].service == QpType::Ud)
            .collect();
        endpoints[self.rng.random_range(0..endpoints.len())]
    }

    /// Moves both queue pairs of a connection to the error state, and replaces them.
    fn fail(&mut self, index: usize) {
        let pair = [index, self.endpoints[index].peer];
        self.trace_event(|| format!("the connection of endpoints {pair:?} fails"));
        self.stats.failures += 1;
        for endpoint in pair {
            let endpoint = &mut self.endpoints[endpoint];
            let host = endpoint.host;
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            endpoint.qp.modify(
                &attr,
                AttrMask::empty(),
                self.now,
                &mut self.hosts[host].inner,
            );
            self.check(host);
        }
        for endpoint in pair {
            let outstanding = &self.endpoints[endpoint].outstanding;
            assert!(
                outstanding.is_empty(),
                "endpoint {endpoint} did not flush all: {outstanding:?}"
            );
        }
        let service = self.endpoints[index].service;
        let qps = self.connect(service, pair.map(|endpoint| self.endpoints[endpoint].host));
        for (endpoint, qp) in pair.into_iter().zip(qps) {
            // Flushed messages may or may not have arrived; they will not arrive any more.
            let peer = self.endpoints[endpoint].peer;
            self.endpoints[endpoint].expected = self.endpoints[peer].posted;
            self.endpoints[endpoint].qp = qp;
        }
    }

    /// Posts the receives of a host, and sends for its endpoints.
    fn step_host(&mut self, index: usize) {
        let now = self.now;
        let host = &mut self.hosts[index];
        if host.receive_at <= now {
            host.receive_at = Time::NEVER;
            for slot in host.free.drain(..) {
                let sge = Sge {
                    addr: base(RECEIVE) + slot * (GRH + MAX_MESSAGE) as u64,
                    length: (GRH + MAX_MESSAGE) as u32,
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
        for endpoint in 0..self.endpoints.len() {
            if self.endpoints[endpoint].host == index && self.send(endpoint) {
                self.hosts[index].poll_at = now + Duration::from_micros(2);
            }
        }
        self.check(index);
    }

    /// Polls an endpoint once for packets. Returns whether there are more.
    fn send(&mut self, index: usize) -> bool {
        let room = [1, 4, 64][self.rng.random_range(0..3)];
        let endpoint = &self.endpoints[index];
        let from = endpoint.host;
        let to = match endpoint.qp.next_destination() {
            Some(handle) => handle as usize,
            None => self.endpoints[endpoint.peer].host,
        };
        let mut sink = Sink::new(self.now, room);
        let host = &mut self.hosts[from].inner;
        let more = self.endpoints[index].qp.poll(self.now, host, &mut sink);
        for packet in sink.packets {
            self.trace_event(|| {
                let packet = Packet::parse(&packet).expect("endpoints send well-formed packets");
                let bth = &packet.header.bth;
                format!(
                    "endpoint {index} sends {} {}",
                    bth.psn,
                    bth.opcode.info().name
                )
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

    fn endpoint_of(&self, qpn: Qpn) -> usize {
        let endpoint = self
            .endpoints
            .iter()
            .position(|endpoint| endpoint.qp.qpn() == qpn);
        endpoint.expect("a destroyed queue pair has no completions")
    }

    fn check_send(&mut self, completion: &Completion) {
        let index = self.endpoint_of(completion.qpn);
        let endpoint = &mut self.endpoints[index];
        let number = endpoint
            .outstanding
            .pop_front()
            .expect("a completion for each posted message");
        assert_eq!(
            completion.wr_id,
            u64::from(number),
            "endpoint {index}: the order of posting"
        );
        match completion.status {
            WcStatus::Success if endpoint.service == QpType::Rc => {
                let peer = endpoint.peer;
                let arrived = self.endpoints[peer].expected > number;
                assert!(
                    arrived,
                    "endpoint {index}: message {number} is done, but has not arrived"
                );
            }
            WcStatus::Success => {}
            WcStatus::WrFlushErr if endpoint.qp.state() == QpState::Err => self.stats.flushed += 1,
            status => panic!("endpoint {index}: message {number} ended with {status:?}"),
        }
    }

    fn check_reception(&mut self, host: usize, completion: &Completion) {
        let index = self.endpoint_of(completion.qpn);
        let endpoint = &self.endpoints[index];
        assert_eq!(endpoint.host, host);
        match completion.status {
            WcStatus::Success => {}
            // A receive held by a message that did not complete.
            WcStatus::WrFlushErr if endpoint.qp.state() == QpState::Err => return,
            status => panic!("endpoint {index}: a receive ended with {status:?}"),
        }
        let slot = completion.wr_id as usize * (GRH + MAX_MESSAGE);
        let len = completion.byte_len as usize;
        let (region, place) = match (completion.opcode, completion.extra, completion.grh) {
            (WcOpcode::RecvWriteImm, Extra::Imm(number), _) => {
                let place = slot_offset(index, number);
                (1, place..place + len)
            }
            (_, _, Some(_)) => (0, slot + GRH..slot + len),
            (_, _, None) => (0, slot..slot + len),
        };
        let bytes = self.hosts[host].inner.regions[region].bytes.borrow();
        let name = MessageId::of(&bytes[place]);
        drop(bytes);
        assert_eq!(
            name.to, index as u32,
            "{name:?} arrived at endpoint {index}"
        );
        assert_eq!(completion.extra, Extra::Imm(name.number), "{name:?}");
        self.trace_event(|| format!("endpoint {index} has {name:?}"));
        let sender = &self.endpoints[name.from as usize];
        assert!(name.number < sender.posted, "{name:?} was never sent");
        let preserves_order = self.links[sender.host][host].preserves_order();
        let endpoint = &mut self.endpoints[index];
        match endpoint.service {
            QpType::Rc => {
                assert_eq!(
                    name.number, endpoint.expected,
                    "endpoint {index}: out of order or duplicate"
                );
                self.stats.reliable += 1;
            }
            // The service does not detect duplicates and reordering, which the network must not
            // cause (9.8.2.2).
            QpType::Uc => {
                let in_order = name.number >= endpoint.expected;
                assert!(
                    in_order || !preserves_order,
                    "endpoint {index}: {name:?} is late or a duplicate"
                );
                self.stats.lost += u64::from(name.number.saturating_sub(endpoint.expected));
                self.stats.unreliable += 1;
            }
            _ => {
                assert_eq!(
                    sender_qpn(&self.endpoints, name),
                    completion.src_qp,
                    "{name:?}"
                );
                self.stats.datagrams += 1;
                return;
            }
        }
        endpoint.expected = endpoint.expected.max(name.number + 1);
    }
}

/// Returns the offset of a message to an endpoint in the region for WRITEs. Messages behind a
/// missing one may be executed together with it, before the program checks any of them; so each has
/// a place.
fn slot_offset(to: usize, number: u32) -> usize {
    (to * SLOTS_PER_ENDPOINT + number as usize % SLOTS_PER_ENDPOINT) * MAX_MESSAGE
}

/// Returns the QPN of a datagram's sender. Datagram queue pairs are never replaced.
fn sender_qpn(endpoints: &[Endpoint], name: MessageId) -> Qpn {
    endpoints[name.from as usize].qp.qpn()
}
