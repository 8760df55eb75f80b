//! The setup of the scenario: hosts, links between them, and connected queue pairs.

use super::*;
use crate::host::Region;
use crate::link::faults;
use crate::rng::ScriptedRng;
use rand::SeedableRng;
use std::cell::RefCell;
use std::collections::HashSet;
use urxe_proto::host::Access;
use urxe_proto::queue::RecvQueue;

impl World {
    pub(super) fn new(seed: u64, limits: &Limits, trace: bool) -> Self {
        let mut rng = Rng::seed_from_u64(seed);
        let mtu = Mtu::ALL[rng.random_range(0..3)];
        let count = rng.random_range(2..=5);
        let bad = rng.random_bool(0.85);
        let mut links = Vec::new();
        for _ in 0..count {
            let link = |_| {
                let faults = faults(&mut rng, bad).within(limits);
                Link::new(faults, true, ScriptedRng::new(Vec::new(), rng.random()))
            };
            links.push((0..count).map(link).collect());
        }
        let mut world = World {
            hosts: Vec::new(),
            endpoints: Vec::new(),
            links,
            mtu,
            longest: MAX_MESSAGE.min(limits.longest).max(MIN_LEN),
            failure_rate: [0.0, 0.0, 0.01, 0.1][rng.random_range(0..4)],
            next_qpn: 2,
            now: Time(0),
            rng,
            trace,
            stats: Stats::default(),
        };
        world.create_hosts(count, limits);
        world
    }

    /// Creates the hosts and their endpoints.
    fn create_hosts(&mut self, hosts: usize, limits: &Limits) {
        let connections = self.rng.random_range(1..=2 * hosts);
        let datagrams = self.rng.random_range(0..=hosts);
        let endpoints = 2 * connections + datagrams;
        // A queue pair in the middle of a message holds a receive until the message ends, if it
        // ever does.
        let receives = endpoints + self.rng.random_range(1..20);
        for _ in 0..hosts {
            let region = |key, len, access| Region {
                key,
                base: base(key),
                access,
                bytes: RefCell::new(vec![0; len]),
            };
            self.hosts.push(Host {
                inner: SimHost {
                    regions: vec![
                        region(RECEIVE, receives * (GRH + MAX_MESSAGE), Access::LOCAL_WRITE),
                        region(
                            TARGET,
                            endpoints * SLOTS_PER_ENDPOINT * MAX_MESSAGE,
                            Access::REMOTE_WRITE,
                        ),
                    ],
                    invalidatable: RefCell::new(HashSet::new()),
                    local: RefCell::default(),
                    receives: RecvQueue::new(receives as u32, 1).expect("memory"),
                    shared: true,
                    srq: None,
                    sends: VecDeque::new(),
                    receptions: VecDeque::new(),
                    watched: None,
                    versions: None,
                    events: VecDeque::new(),
                },
                free: (0..receives as u64).collect(),
                receive_at: Time(0),
                poll_at: Time::NEVER,
            });
        }
        for _ in 0..connections {
            let service = [QpType::Rc, QpType::Uc][self.rng.random_range(0..2)];
            let a = self.rng.random_range(0..hosts);
            // Some connections are within one host.
            let b = self.rng.random_range(0..hosts);
            let index = self.endpoints.len();
            let [qp_a, qp_b] = self.connect(service, [a, b]);
            self.add(qp_a, service, a, index + 1, limits);
            self.add(qp_b, service, b, index, limits);
        }
        for _ in 0..datagrams {
            let host = self.rng.random_range(0..hosts);
            let attributes = self.attributes(QpType::Ud, (Qpn::new(0), Psn::new(0), gid(0)));
            let qp = Qp::new_in_rts(&attributes, self.now, &mut self.hosts[host].inner);
            let index = self.endpoints.len();
            self.add(qp, QpType::Ud, host, index, limits);
        }
    }

    fn add(&mut self, qp: Qp, service: QpType, host: usize, peer: usize, limits: &Limits) {
        let left = [0, 3, 20, 60][self.rng.random_range(0..4)];
        self.endpoints.push(Endpoint {
            qp,
            service,
            host,
            peer,
            left: left.min(limits.ops.try_into().unwrap_or(u32::MAX)),
            posted: 0,
            outstanding: VecDeque::new(),
            expected: 0,
            post_at: Time(0),
        });
    }

    fn attributes(&mut self, service: QpType, peer: (Qpn, Psn, Gid)) -> ConnectionAttributes {
        self.next_qpn += 1;
        ConnectionAttributes {
            service,
            mtu: self.mtu,
            qpn: Qpn::new(self.next_qpn),
            psn: match self.rng.random_bool(0.5) {
                true => Psn::new(0) - self.rng.random_range(0..50),
                false => Psn::new(self.rng.random()),
            },
            peer,
            timeout: [14, 16][self.rng.random_range(0..2)],
        }
    }

    /// Returns two queue pairs that are connected to each other, with QPNs not used before.
    pub(super) fn connect(&mut self, service: QpType, hosts: [usize; 2]) -> [Qp; 2] {
        let no_peer = (Qpn::new(0), Psn::new(0), gid(0));
        let mut attributes = [(); 2].map(|()| self.attributes(service, no_peer));
        for own in 0..2 {
            let peer = &attributes[1 - own];
            attributes[own].peer = (peer.qpn, peer.psn, gid(hosts[1 - own]));
        }
        [0, 1].map(|own| {
            let host = &mut self.hosts[hosts[own]].inner;
            Qp::new_in_rts(&attributes[own], self.now, host)
        })
    }
}
