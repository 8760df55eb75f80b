//! The setup of the scenario: hosts, links between them, and connected queue pairs.

use super::*;
use crate::host::Region;
use crate::link::faults;
use crate::rng::Scripted;
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
                Link::new(faults, true, Scripted::new(Vec::new(), rng.random()))
            };
            links.push((0..count).map(link).collect());
        }
        let mut world = World {
            hosts: Vec::new(),
            ends: Vec::new(),
            links,
            mtu,
            longest: ROOM.min(limits.longest).max(SHORTEST),
            failing: [0.0, 0.0, 0.01, 0.1][rng.random_range(0..4)],
            next_qpn: 2,
            now: Time(0),
            rng,
            trace,
            stats: Stats::default(),
        };
        world.populate(count, limits);
        world
    }

    /// Creates the hosts and their endpoints.
    fn populate(&mut self, hosts: usize, limits: &Limits) {
        let connections = self.rng.random_range(1..=2 * hosts);
        let datagrams = self.rng.random_range(0..=hosts);
        let ends = 2 * connections + datagrams;
        // A queue pair in the middle of a message holds a receive until the message ends, if it
        // ever does.
        let receives = ends + self.rng.random_range(1..20);
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
                        region(RECEIVE, receives * (GRH + ROOM), Access::LOCAL_WRITE),
                        region(TARGET, ends * PLACES * ROOM, Access::REMOTE_WRITE),
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
            let index = self.ends.len();
            let [qp_a, qp_b] = self.connect(service, [a, b]);
            self.add(qp_a, service, a, index + 1, limits);
            self.add(qp_b, service, b, index, limits);
        }
        for _ in 0..datagrams {
            let host = self.rng.random_range(0..hosts);
            let wiring = self.wiring(QpType::Ud, (Qpn::new(0), Psn::new(0), gid(0)));
            let qp = Qp::ready(&wiring, self.now, &mut self.hosts[host].inner);
            let index = self.ends.len();
            self.add(qp, QpType::Ud, host, index, limits);
        }
    }

    fn add(&mut self, qp: Qp, service: QpType, host: usize, peer: usize, limits: &Limits) {
        let left = [0, 3, 20, 60][self.rng.random_range(0..4)];
        self.ends.push(End {
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

    fn wiring(&mut self, service: QpType, peer: (Qpn, Psn, Gid)) -> Wiring {
        self.next_qpn += 1;
        Wiring {
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
        let nobody = (Qpn::new(0), Psn::new(0), gid(0));
        let mut wirings = [(); 2].map(|()| self.wiring(service, nobody));
        for own in 0..2 {
            let peer = &wirings[1 - own];
            wirings[own].peer = (peer.qpn, peer.psn, gid(hosts[1 - own]));
        }
        [0, 1].map(|own| {
            let host = &mut self.hosts[hosts[own]].inner;
            Qp::ready(&wirings[own], self.now, host)
        })
    }
}
