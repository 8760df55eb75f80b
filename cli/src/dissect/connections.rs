//! Assigns packets to connections.
//!
//! A packet names only its destination queue pair. The two directions of a connection are found
//! from the connection manager's REQ and REP where the capture has them. Otherwise the direction
//! that answers another is the one whose responses have the most PSNs of its requests. Unreliable
//! connections have no responses: two directions are paired if they are the only ones between their
//! addresses.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use urxe_proto::cm::wire::Message;
use urxe_proto::ids::Qpn;
use urxe_proto::mtu::Mtu;
use urxe_proto::wire::{Operation, Transport};

use super::packet::Packet;
use super::sequence::has_full_mtu;

/// One end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    pub ip: IpAddr,
    /// `None` if the capture has no packet to this end.
    pub qpn: Option<Qpn>,
}

/// A connection, or two queue pairs that exchange datagrams.
#[derive(Debug)]
pub struct Connection {
    pub transport: Transport,
    /// Packets of direction 0 are sent to the second end.
    pub ends: [End; 2],
    /// The path MTU in bytes, from the REQ or from the packets; `None` if all messages are single
    /// packets.
    pub mtu: Option<usize>,
    /// The service that the REQ names.
    pub service: Option<String>,
    /// The indices of the packets and their directions, in the order of the capture.
    pub packets: Vec<(usize, usize)>,
}

impl Connection {
    /// Whether both directions may be one flow: that of a queue pair that is connected to itself.
    pub fn is_loop(&self) -> bool {
        self.ends[0].ip == self.ends[1].ip && self.ends[0].qpn.is_none()
    }

    /// Whether it consists of datagrams.
    pub fn is_datagrams(&self) -> bool {
        self.transport == Transport::Ud
    }
}

/// What packets to one queue pair have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Flow {
    src: IpAddr,
    dst: IpAddr,
    /// The destination.
    qpn: Qpn,
    /// The source of datagrams.
    src_qpn: Option<Qpn>,
    /// Counts the connections of a queue pair number that is used again.
    use_count: u32,
}

/// The two flows of a connection that was established in the capture.
struct Established {
    to_listener: Flow,
    to_requester: Flow,
    mtu: Option<usize>,
    service: String,
}

/// Assigns all packets to connections.
pub fn assign(packets: &[Packet]) -> Vec<Connection> {
    let mut uses: HashMap<(IpAddr, Qpn), u32> = HashMap::new();
    let mut cm = ConnectionManager::default();
    let mut established = Vec::new();
    let mut order: Vec<Flow> = Vec::new();
    let mut members: HashMap<Flow, Vec<usize>> = HashMap::new();
    for (i, packet) in packets.iter().enumerate() {
        if let Some(new) = cm.take(packet, &mut uses) {
            established.push(new);
        }
        let flow = Flow::of(packet, &uses);
        let list = members.entry(flow).or_insert_with(|| {
            order.push(flow);
            Vec::new()
        });
        list.push(i);
    }
    let pairs = pairs(packets, &order, &members, &established);
    let mut connections = Vec::new();
    let mut done: HashSet<Flow> = HashSet::new();
    for &flow in &order {
        if done.contains(&flow) {
            continue;
        }
        let back = pairs.get(&flow).copied();
        done.insert(flow);
        done.extend(back);
        connections.push(connection(packets, &members, &established, flow, back));
    }
    connections
}

impl Flow {
    fn of(packet: &Packet, uses: &HashMap<(IpAddr, Qpn), u32>) -> Self {
        let qpn = packet.header.bth.dest_qp;
        Self {
            src: packet.src,
            dst: packet.dst,
            qpn,
            src_qpn: packet.header.deth.map(|deth| deth.src_qp),
            use_count: uses.get(&(packet.dst, qpn)).copied().unwrap_or(0),
        }
    }
}

/// The REQs without a REP yet.
#[derive(Default)]
struct ConnectionManager {
    /// By the requester's address and communication ID.
    requests: HashMap<(IpAddr, u32), Request>,
}

struct Request {
    qpn: Qpn,
    mtu: Option<usize>,
    service: String,
    /// Whether a REP arrived: a second one is a retransmission.
    answered: bool,
}

impl ConnectionManager {
    fn take(
        &mut self,
        packet: &Packet,
        uses: &mut HashMap<(IpAddr, Qpn), u32>,
    ) -> Option<Established> {
        match packet.cm.as_deref()? {
            Message::Req(req) => {
                let request = Request {
                    qpn: req.qpn,
                    mtu: req.mtu().map(Mtu::bytes),
                    service: match req.service.port() {
                        Some((_, port)) => format!("port {port}"),
                        None => format!("service {:#018x}", req.service.0),
                    },
                    answered: false,
                };
                let key = (packet.src, req.local_comm_id);
                if self
                    .requests
                    .get(&key)
                    .is_none_or(|known| known.qpn != req.qpn)
                {
                    self.requests.insert(key, request);
                }
                None
            }
            Message::Rep(rep) => {
                let request = self.requests.get_mut(&(packet.dst, rep.remote_comm_id))?;
                if std::mem::replace(&mut request.answered, true) {
                    return None;
                }
                let mut next_use = |ip, qpn| {
                    let count = uses.entry((ip, qpn)).or_insert(0);
                    *count += 1;
                    *count
                };
                let (listener, requester) = (packet.src, packet.dst);
                let flow = |src, dst, qpn, use_count| Flow {
                    src,
                    dst,
                    qpn,
                    src_qpn: None,
                    use_count,
                };
                Some(Established {
                    to_listener: flow(requester, listener, rep.qpn, next_use(listener, rep.qpn)),
                    to_requester: flow(
                        listener,
                        requester,
                        request.qpn,
                        next_use(requester, request.qpn),
                    ),
                    mtu: request.mtu,
                    service: request.service.clone(),
                })
            }
            _ => None,
        }
    }
}

/// Returns the opposite flow of each flow that has one.
fn pairs(
    packets: &[Packet],
    order: &[Flow],
    members: &HashMap<Flow, Vec<usize>>,
    established: &[Established],
) -> HashMap<Flow, Flow> {
    let mut pairs = HashMap::new();
    for new in established {
        let [there, back] = [new.to_listener, new.to_requester];
        if members.contains_key(&there) && members.contains_key(&back) {
            pairs.insert(there, back);
            pairs.insert(back, there);
        }
    }
    // Datagrams name both queue pairs.
    for flow in order {
        if let Some(src_qpn) = flow.src_qpn {
            let back = Flow {
                src: flow.dst,
                dst: flow.src,
                qpn: src_qpn,
                src_qpn: Some(flow.qpn),
                ..*flow
            };
            let back = order.iter().find(|other| {
                Flow {
                    use_count: back.use_count,
                    ..**other
                } == back
            });
            pairs.extend(back.map(|back| (*flow, *back)));
        }
    }
    let mut scores: Vec<_> = scores(packets, order, members).into_iter().collect();
    // The best first; in the order of the capture among equals.
    scores.sort_by_key(|&((a, b), score)| (std::cmp::Reverse(score), a, b));
    for ((a, b), _) in scores {
        let (a, b) = (order[a], order[b]);
        if !pairs.contains_key(&a) && !pairs.contains_key(&b) {
            pairs.insert(a, b);
            pairs.insert(b, a);
        }
    }
    for (a, b) in only_pairs(packets, order, members, &pairs) {
        pairs.insert(a, b);
        pairs.insert(b, a);
    }
    pairs
}

/// Returns the flows of unreliable connections that can be paired in one way only: those that have
/// no opposite yet, where two addresses exchange exactly one such flow in each direction. If both
/// ends have the same address, the two flows have the same direction.
fn only_pairs(
    packets: &[Packet],
    order: &[Flow],
    members: &HashMap<Flow, Vec<usize>>,
    paired: &HashMap<Flow, Flow>,
) -> Vec<(Flow, Flow)> {
    let mut between: HashMap<(IpAddr, IpAddr), Vec<Flow>> = HashMap::new();
    for flow in order.iter().filter(|flow| !paired.contains_key(flow)) {
        let mut own = members.get(flow).into_iter().flatten();
        if own.any(|&i| packets[i].header.bth.opcode.info().transport == Transport::Uc) {
            let addresses = (flow.src.min(flow.dst), flow.src.max(flow.dst));
            between.entry(addresses).or_default().push(*flow);
        }
    }
    let pair = |flows: Vec<Flow>| match flows[..] {
        [a, b] if (a.src, a.dst) == (b.dst, b.src) => Some((a, b)),
        _ => None,
    };
    between.into_values().filter_map(pair).collect()
}

/// Returns for pairs of flows how many responses of one have the PSN of a request of the other.
fn scores(
    packets: &[Packet],
    order: &[Flow],
    members: &HashMap<Flow, Vec<usize>>,
) -> HashMap<(usize, usize), u32> {
    // The flows with a request of this PSN between these addresses.
    let mut requests: HashMap<(IpAddr, IpAddr, u32), Vec<usize>> = HashMap::new();
    let mut responses: Vec<(usize, u32)> = Vec::new();
    for (i, flow) in order.iter().enumerate() {
        for &member in members.get(flow).into_iter().flatten() {
            let header = &packets[member].header;
            let operation = packets[member].operation();
            let psn = header.bth.psn;
            if operation.is_request() && flow.src_qpn.is_none() {
                let flows = requests.entry((flow.src, flow.dst, psn.get())).or_default();
                if flows.last() != Some(&i) {
                    flows.push(i);
                }
            } else if operation.is_response() {
                responses.push((i, psn.get()));
            }
        }
    }
    let mut scores = HashMap::new();
    for (i, psn) in responses {
        let flow = &order[i];
        let candidates = requests.get(&(flow.dst, flow.src, psn));
        for &candidate in candidates.into_iter().flatten() {
            // Both directions of a queue pair that is connected to itself are one flow.
            if candidate != i {
                *scores
                    .entry((i.min(candidate), i.max(candidate)))
                    .or_insert(0) += 1;
            }
        }
    }
    scores
}

fn connection(
    packets: &[Packet],
    members: &HashMap<Flow, Vec<usize>>,
    established: &[Established],
    flow: Flow,
    back: Option<Flow>,
) -> Connection {
    let list = |flow: Option<Flow>, direction: usize| {
        let members = flow
            .and_then(|flow| members.get(&flow))
            .into_iter()
            .flatten();
        members.map(move |&i| (i, direction))
    };
    let mut all: Vec<_> = list(Some(flow), 0).chain(list(back, 1)).collect();
    all.sort_unstable();
    let new = established
        .iter()
        .find(|new| new.to_listener == flow || new.to_requester == flow);
    let mut transports = all
        .iter()
        .map(|&(i, _)| packets[i].header.bth.opcode.info().transport);
    // Congestion notifications and probes belong to connections of any transport.
    let is_service = |t: &Transport| !matches!(t, Transport::Cnp | Transport::Manufacturer);
    let transport = transports.find(is_service).unwrap_or(Transport::Cnp);
    let src_qpn = back.map(|back| back.qpn).or(flow.src_qpn);
    let ends = [
        End {
            ip: flow.src,
            qpn: src_qpn,
        },
        End {
            ip: flow.dst,
            qpn: Some(flow.qpn),
        },
    ];
    Connection {
        transport,
        ends,
        mtu: new.and_then(|new| new.mtu).or_else(|| mtu(packets, &all)),
        service: new.map(|new| new.service.clone()),
        packets: all,
    }
}

/// Returns the path MTU that the packets show: the most frequent payload of those that are not the
/// last of a message.
fn mtu(packets: &[Packet], members: &[(usize, usize)]) -> Option<usize> {
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for &(i, _) in members {
        let packet = &packets[i];
        let info = packet.header.bth.opcode.info();
        if has_full_mtu(info.position) && info.operation != Operation::Reserved {
            *counts.entry(packet.len).or_default() += 1;
        }
    }
    let valid = |len: &usize| Mtu::ALL.iter().any(|mtu| mtu.bytes() == *len);
    let counts = counts.into_iter().filter(|(len, _)| valid(len));
    counts
        .max_by_key(|&(len, count)| (count, len))
        .map(|(len, _)| len)
}
