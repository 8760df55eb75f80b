//! One endpoint: a queue pair, its host, and a program that posts the work of its plan and checks
//! all results.

use super::attempts::RETRY_CNT;
use super::plan::{self, Data, Plan};
use crate::host::{Region, SimHost};
use crate::rng::Rng;
use crate::sink::Sink;
use rand::RngExt;
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use urxe_proto::host::{Access, QpEvent};
use urxe_proto::ids::{Gid, Qpn, Source, Srqn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType, transitions_to_rts};
use urxe_proto::queue::{PostError, RecvQueue, SendQueueSize, packets_of};
use urxe_proto::rc::congestion::{Algorithm, WindowLimits};
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::wire::{Operation, Packet};
use urxe_proto::work::{
    Destination, Extra, Payload, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

/// The send quantum in bytes: the length of the largest READ.
const SEND_QUANTUM: u32 = 64 << 10;

/// The configuration of an endpoint and the behaviour of its program.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// The limits of the send queue.
    pub send: SendQueueSize,
    /// The size of the receive queue.
    pub receives: u32,
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// Whether the connection is an extended one (XRC), on both sides.
    pub xrc: bool,
    /// Whether the receives count as a shared receive queue's, so that credits are invalid.
    pub shared: bool,
    /// The limit of the congestion window, in bytes.
    pub window: WindowLimits,
    /// The size of the out-of-order queue, in bytes.
    pub out_of_order_bytes: u32,
    /// The congestion control algorithm.
    pub congestion: Algorithm,
    /// The first PSN sent.
    pub psn: Psn,
    /// The `timeout` attribute.
    pub timeout: u8,
    /// The `min_rnr_timer` attribute.
    pub min_rnr_timer: u8,
    /// The `max_rd_atomic` attribute, which is the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
    /// The maximum pause between two rounds of posting sends.
    pub send_pause: Duration,
    /// The maximum pause between two rounds of posting receives.
    pub receive_pause: Duration,
    /// The maximum delay between the arrival of a packet and polling for packets to send.
    pub poll_delay: Duration,
    /// The maximum number of packets that the sink accepts per poll.
    pub sink: usize,
    /// The probability that a round of posting begins with draining the send queue.
    pub drain: f64,
    /// Whether it accepts a repeated READ request for the middle of an earlier one, as the
    /// responder of the specification does.
    pub accepts_partial_reads: bool,
}

impl EndpointConfig {
    /// Whether sending requires a quantum, as where several connections share a destination.
    fn requires_send_quanta(&self) -> bool {
        self.sink == 4
    }
}

/// An endpoint.
pub struct Endpoint {
    index: usize,
    /// The queue pair; over XRC, the initiator.
    pub qp: RcQp,
    /// Over XRC, the target queue pair.
    tgt: Option<RcQp>,
    /// The memory, receives and completions.
    pub host: SimHost,
    /// The time at which its program posts sends again.
    pub send_at: Time,
    /// The time at which its program posts receives again.
    pub receive_at: Time,
    /// The time at which its queue pairs are polled for packets to send.
    pub poll_at: Time,
    /// Over XRC, whether the target is polled first. The two alternate, as the queue pairs of a
    /// host do: if one of them could always fill the sink first, the other's acknowledgements would
    /// be delayed until the peer times out.
    target_first: bool,
    /// Whether its requester has exhausted its retries, which ends the connection.
    pub has_exhausted_retries: bool,
    /// The number of completed drains of the send queue.
    pub drains: u64,
    /// READs that returned versions.
    pub versions_read: u64,
    /// Repeated READ requests that were dropped because no earlier one had the same end.
    pub partial_reads_dropped: u64,
    /// The ends of READ requests that were not repeated.
    read_ends: HashSet<Psn>,
    config: EndpointConfig,
    rng: Rng,
    /// The work of this endpoint.
    plan: Rc<Plan>,
    /// The work of the peer.
    peer_plan: Rc<Plan>,
    posted: usize,
    /// The times at which the outstanding READs of versions were posted.
    posted_at: VecDeque<Time>,
    /// The newest version that a READ returned.
    newest: Time,
    /// The work requests that generate a completion and have not completed, in order.
    signaled: VecDeque<usize>,
    /// The index of the first work request that is not known to have completed.
    checked: usize,
    receives_posted: usize,
    receptions_checked: usize,
    /// The expected target after the last message received, and the number of operations applied to
    /// it.
    target: Vec<u8>,
    applied: usize,
}

/// The UDP source port of all packets.
const SOURCE_PORT: u16 = 0xc000;

/// Returns the GID of endpoint `index`.
pub fn gid(index: usize) -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, index as u8 + 1).into())
}

fn qpn(index: usize) -> Qpn {
    Qpn::new(0x11 + index as u32)
}

/// Returns the QPN of the XRC target.
fn target_qpn(index: usize) -> Qpn {
    Qpn::new(0x91 + index as u32)
}

/// Returns the number of the shared receive queue.
fn srqn(index: usize) -> Srqn {
    Srqn::new(0x51 + index as u32)
}

impl Endpoint {
    /// Returns an endpoint in RTS. `configs` and `plans` are its own and its peer's.
    pub fn new(
        index: usize,
        mtu: Mtu,
        configs: [&EndpointConfig; 2],
        plans: [Rc<Plan>; 2],
        rng: Rng,
    ) -> Self {
        let [own, peer] = configs;
        let [plan, peer_plan] = plans;
        let region = |key, bytes, access| Region {
            key,
            base: plan::base(key),
            access,
            bytes: RefCell::new(bytes),
        };
        let remote = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let host = SimHost {
            regions: vec![
                region(plan::SOURCE, plan.source.clone(), Access::empty()),
                region(
                    plan::TARGET,
                    peer_plan.target.clone(),
                    Access::LOCAL_WRITE | remote,
                ),
                region(
                    plan::VERSIONS,
                    vec![0; peer_plan.target.len()],
                    Access::REMOTE_READ,
                ),
                region(plan::SINK, vec![UNTOUCHED; plan.sink], Access::LOCAL_WRITE),
                region(
                    plan::RECEIVE,
                    vec![UNTOUCHED; peer_plan.receive],
                    Access::LOCAL_WRITE,
                ),
            ],
            invalidatable: RefCell::new(peer_plan.keys.iter().copied().collect()),
            local: RefCell::default(),
            receives: RecvQueue::new(own.receives, plan::MAX_SGE).expect("memory"),
            shared: own.shared || own.xrc,
            srq: own.xrc.then(|| srqn(index)),
            sends: VecDeque::new(),
            receptions: VecDeque::new(),
            watched: Some(plan::TARGET),
            versions: Some((plan::VERSIONS, Time(0))),
            events: VecDeque::new(),
        };
        let config = RcConfig {
            service: if own.xrc { QpType::XrcIni } else { QpType::Rc },
            qpn: qpn(index),
            send: own.send,
            signal_all: own.signal_all,
            window: own.window,
            out_of_order_bytes: own.out_of_order_bytes,
            congestion: own.congestion,
        };
        let target = RcConfig {
            service: QpType::XrcTgt,
            qpn: target_qpn(index),
            send: SendQueueSize {
                max_wr: 0,
                max_sge: 0,
                max_inline: 0,
            },
            ..config
        };
        let mut qp = RcQp::new(config).expect("memory");
        qp.require_send_quanta(own.requires_send_quanta());
        let mut endpoint = Endpoint {
            index,
            qp,
            tgt: own.xrc.then(|| RcQp::new(target).expect("memory")),
            host,
            send_at: Time(0),
            receive_at: Time(0),
            poll_at: Time::NEVER,
            target_first: false,
            has_exhausted_retries: false,
            drains: 0,
            versions_read: 0,
            partial_reads_dropped: 0,
            read_ends: HashSet::new(),
            config: own.clone(),
            rng,
            target: peer_plan.target.clone(),
            plan,
            peer_plan,
            posted: 0,
            posted_at: VecDeque::new(),
            newest: Time(0),
            signaled: VecDeque::new(),
            checked: 0,
            receives_posted: 0,
            receptions_checked: 0,
            applied: 0,
        };
        let attr = QpAttr {
            access: remote,
            av: AddressVector {
                dgid: gid(1 - index),
                is_global: true,
                ..AddressVector::default()
            },
            path_mtu: mtu,
            timeout: own.timeout,
            retry_cnt: RETRY_CNT,
            rnr_retry: 7,
            rq_psn: peer.psn,
            sq_psn: own.psn,
            max_rd_atomic: own.max_rd_atomic,
            max_dest_rd_atomic: peer.max_rd_atomic,
            min_rnr_timer: own.min_rnr_timer,
            dest_qpn: qpn(1 - index),
            ..QpAttr::default()
        };
        let Some(target) = &mut endpoint.tgt else {
            for (state, mask) in transitions_to_rts(QpType::Rc) {
                endpoint.modify(&QpAttr { state, ..attr }, mask, Time(0));
            }
            return endpoint;
        };
        for (state, mask) in transitions_to_rts(QpType::XrcTgt) {
            let attr = QpAttr { state, ..attr };
            target
                .modify(&attr, mask, Time(0), &mut endpoint.host)
                .expect("the transition is legal");
        }
        let attr = QpAttr {
            dest_qpn: target_qpn(1 - index),
            ..attr
        };
        for (state, mask) in transitions_to_rts(QpType::XrcIni) {
            endpoint.modify(&QpAttr { state, ..attr }, mask, Time(0));
        }
        endpoint
    }

    /// Its queue pairs: one, or over XRC two.
    pub fn qps(&self) -> impl Iterator<Item = &RcQp> {
        std::iter::once(&self.qp).chain(&self.tgt)
    }

    /// The PSN of its requester's oldest request, while it sends requests.
    pub fn oldest_psn(&self) -> Option<Psn> {
        let attr = self.qp.attributes();
        let in_flight = self.qp.bytes_in_flight() / attr.path_mtu.bytes() as u32;
        attr.state.initiates().then(|| attr.sq_psn - in_flight)
    }

    fn modify(&mut self, attr: &QpAttr, mask: AttrMask, now: Time) {
        self.qp
            .modify(attr, mask | AttrMask::STATE, now, &mut self.host)
            .expect("the transition is legal");
    }

    /// The next deadline of its queue pairs.
    fn timer(&self) -> Time {
        self.qps().map(RcQp::deadline).fold(Time::NEVER, Time::min)
    }

    /// The time of the next call of [`Endpoint::step`].
    pub fn next(&self) -> Time {
        self.timer()
            .min(self.send_at)
            .min(self.receive_at)
            .min(self.poll_at)
    }

    /// Runs timers and the program at `now`. Returns the packets to send.
    pub fn step(&mut self, now: Time) -> Vec<Vec<u8>> {
        self.write_versions(now);
        if self.timer() <= now {
            for qp in [Some(&mut self.qp), self.tgt.as_mut()]
                .into_iter()
                .flatten()
            {
                qp.handle_timeout(now, &mut self.host);
            }
            self.poll_at = now;
        }
        if self.receive_at <= now {
            self.post_receives(now);
        }
        if self.send_at <= now {
            self.program(now);
            self.poll_at = now;
        }
        self.check_sends(now);
        let packets = if self.poll_at <= now {
            self.poll(now)
        } else {
            Vec::new()
        };
        self.check_events(now);
        self.check_sends(now);
        packets
    }

    /// Performs the second writer's write: the time, in each word of the versions.
    fn write_versions(&mut self, now: Time) {
        self.host.versions = Some((plan::VERSIONS, now));
    }

    /// Handles a packet, which may be marked (ECN).
    pub fn receive(&mut self, now: Time, from: Gid, packet: &Packet<'_>, marked: bool) {
        self.write_versions(now);
        if !self.config.accepts_partial_reads && self.is_partial_read(packet) {
            self.partial_reads_dropped += 1;
            return;
        }
        let qp = match &mut self.tgt {
            Some(target) if packet.header.bth.dest_qp == target.qpn() => target,
            _ => &mut self.qp,
        };
        let source = Source {
            gid: from,
            port: SOURCE_PORT,
        };
        qp.handle_packet(now, source, packet, &mut self.host);
        if marked {
            qp.handle_ecn_mark(now, packet);
        }
        self.check_sends(now);
        self.check_receptions();
        self.check_events(now);
        let delay = self.pause(self.config.poll_delay);
        self.poll_at = self.poll_at.min(now + delay);
    }

    /// Whether this is a repeated READ request whose end is not that of an earlier one.
    fn is_partial_read(&mut self, packet: &Packet<'_>) -> bool {
        let header = &packet.header;
        let operation = header.bth.opcode.info().operation;
        let (Operation::ReadRequest, Some(reth)) = (operation, header.reth) else {
            return false;
        };
        let responder = self.tgt.as_ref().unwrap_or(&self.qp).attributes();
        let end = header.bth.psn + packets_of(reth.length, responder.path_mtu);
        if header.bth.psn.before(responder.rq_psn) {
            return !self.read_ends.contains(&end);
        }
        self.read_ends.insert(end);
        false
    }

    fn pause(&mut self, longest: Duration) -> Duration {
        Duration::from_nanos(self.rng.random_range(0..=longest.as_nanos() as u64))
    }

    fn poll(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut sink = Sink::new(now, self.rng.random_range(1..=self.config.sink));
        let mut qps = [Some(&mut self.qp), self.tgt.as_mut()];
        if self.target_first {
            qps.reverse();
        }
        self.target_first = !self.target_first;
        let mut more = false;
        for qp in qps.into_iter().flatten() {
            more |= qp.poll_transmit(now, &mut self.host, &mut sink);
        }
        assert_eq!(more, sink.refused, "there is more when the sink was full");
        self.poll_at = Time::NEVER;
        if self.qp.needs_send_quantum() {
            self.qp.renew_send_quantum(SEND_QUANTUM);
            more = true;
        }
        if more {
            let pause = self.pause(Duration::from_micros(20));
            self.poll_at = now + pause;
        }
        sink.packets
    }

    /// Posts sends, perhaps after starting to drain the queue.
    fn program(&mut self, now: Time) {
        let pause = self.pause(self.config.send_pause);
        self.send_at = now + pause + Duration::from_nanos(1);
        if self.qp.state() == QpState::Rts && self.rng.random_bool(self.config.drain) {
            let attr = QpAttr {
                state: QpState::Sqd,
                en_sqd_async_notify: true,
                ..QpAttr::default()
            };
            self.modify(&attr, AttrMask::EN_SQD_ASYNC_NOTIFY, now);
        }
        let to_peer = Destination::Shared(srqn(1 - self.index));
        for _ in 0..self.rng.random_range(1..20) {
            let Some(op) = self.plan.ops.get(self.posted) else {
                self.send_at = Time::NEVER;
                return;
            };
            let wr = SendWr {
                wr_id: self.posted as u64,
                op: op.op,
                flags: op.flags,
                payload: match &op.data {
                    Data::Sges(sges) => Payload::Sges(sges),
                    Data::Inline => Payload::Inline(&op.bytes),
                },
                dest: self.tgt.as_ref().map(|_| to_peer),
            };
            match self.qp.post_send(&wr, now, &mut self.host) {
                Ok(()) => {}
                Err(PostError::Full) => {
                    self.send_at = now + pause + FULL_PAUSE;
                    return;
                }
                Err(error) => panic!("posting {:?}: {error}", op.op),
            }
            if self.config.signal_all || op.flags.contains(SendFlags::SIGNALED) {
                self.signaled.push_back(self.posted);
            }
            if op.reads_versions() {
                self.posted_at.push_back(now);
            }
            self.posted += 1;
        }
    }

    fn post_receives(&mut self, now: Time) {
        let pause = self.pause(self.config.receive_pause);
        self.receive_at = now + pause + Duration::from_nanos(1);
        for _ in 0..self.rng.random_range(1..20) {
            let Some(reception) = self.peer_plan.receptions.get(self.receives_posted) else {
                self.receive_at = Time::NEVER;
                return;
            };
            let wr_id = self.receives_posted as u64;
            match self.host.receives.post(wr_id, &reception.sges) {
                Ok(()) => self.receives_posted += 1,
                Err(PostError::Full) => {
                    self.receive_at = now + pause + FULL_PAUSE;
                    return;
                }
                Err(error) => panic!("posting a receive: {error}"),
            }
            self.tgt
                .as_mut()
                .unwrap_or(&mut self.qp)
                .receive_posted(&mut self.host);
        }
    }

    fn check_events(&mut self, now: Time) {
        while let Some(event) = self.host.events.pop_front() {
            assert_eq!(event, QpEvent::SendQueueDrained, "unexpected event");
            assert_eq!(self.qp.state(), QpState::Sqd);
            self.drains += 1;
            let attr = QpAttr {
                state: QpState::Rts,
                ..QpAttr::default()
            };
            self.modify(&attr, AttrMask::empty(), now);
            self.poll_at = now;
        }
    }

    /// Checks that each signaled work request completes once, in order, after all before it.
    ///
    /// An error for exhausted retries ends the connection. [`Attempts`] judges it.
    ///
    /// [`Attempts`]: super::attempts::Attempts
    fn check_sends(&mut self, now: Time) {
        while let Some(completion) = self.host.sends.pop_front() {
            if completion.status == WcStatus::RetryExcErr {
                let index = completion.wr_id as usize;
                assert!(
                    (self.checked..self.posted).contains(&index),
                    "{completion:?}"
                );
                assert_eq!(self.qp.state(), QpState::Err);
                self.has_exhausted_retries = true;
                self.host.sends.clear();
                self.host.events.clear();
                return;
            }
            let index = self
                .signaled
                .pop_front()
                .unwrap_or_else(|| panic!("unexpected {completion:?}"));
            let op = &self.plan.ops[index];
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            assert_eq!(completion.wr_id, index as u64, "out of order");
            assert_eq!(completion.opcode, op.op.completion_opcode());
            assert_eq!(completion.qpn, self.qp.qpn());
            if op.op.has_response() {
                assert_eq!(completion.byte_len as usize, op.bytes.len());
            }
            for done in self.checked..=index {
                match self.plan.ops[done].reads_versions() {
                    true => self.check_versions(done, now),
                    false => self.check_result(done),
                }
            }
            self.checked = index + 1;
        }
    }

    /// Checks the result of a READ or an atomic.
    fn check_result(&self, index: usize) {
        let op = &self.plan.ops[index];
        if let (true, Data::Sges(sges)) = (op.op.has_response(), &op.data) {
            let got = self.gather_region(sges, plan::SINK);
            let wrong = got.iter().zip(&op.bytes).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "operation {index}, {:?}: first wrong", op.op);
        }
    }

    /// Checks the versions that a READ returned. READ after READ is ordered without a fence
    /// (10.8.3.3): none returns a version older than an earlier one did. Within one READ there is
    /// no order.
    fn check_versions(&mut self, index: usize, now: Time) {
        let posted = self.posted_at.pop_front().expect("it was posted");
        let op = &self.plan.ops[index];
        let Data::Sges(sges) = &op.data else {
            unreachable!("a READ has elements");
        };
        let got = self.gather_region(sges, plan::SINK);
        let versions = got
            .as_chunks()
            .0
            .iter()
            .map(|&word| u64::from_le_bytes(word));
        let (Some(oldest), Some(newest)) = (versions.clone().min(), versions.max()) else {
            return;
        };
        assert!(
            posted.0 <= oldest && newest <= now.0,
            "operation {index} returned versions {oldest} to {newest}, posted at {posted:?} and \
             completed at {now:?}"
        );
        assert!(
            self.newest.0 <= oldest,
            "operation {index} returned version {oldest}, and an earlier READ {:?}",
            self.newest
        );
        self.newest = Time(newest);
        self.versions_read += 1;
    }

    fn gather_region(&self, sges: &[urxe_proto::work::Sge], key: u32) -> Vec<u8> {
        let bytes = self.region(key);
        let pieces = sges.iter().map(|sge| {
            let start = (sge.addr - plan::base(key)) as usize;
            &bytes[start..start + sge.length as usize]
        });
        pieces.flatten().copied().collect()
    }

    fn region(&self, key: u32) -> std::cell::Ref<'_, Vec<u8>> {
        let region = self.host.regions.iter().find(|region| region.key == key);
        region.expect("the region exists").bytes.borrow()
    }

    /// Checks that messages arrive once, in order and unmodified, after the effects of all earlier
    /// operations and before those of later ones.
    fn check_receptions(&mut self) {
        let peer_plan = Rc::clone(&self.peer_plan);
        while let Some((completion, solicited, target)) = self.host.receptions.pop_front() {
            let reception = peer_plan
                .receptions
                .get(self.receptions_checked)
                .unwrap_or_else(|| panic!("unexpected {completion:?}"));
            let op = &peer_plan.ops[reception.op];
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            assert_eq!(completion.wr_id, self.receptions_checked as u64);
            assert_eq!(completion.byte_len as usize, op.bytes.len());
            assert_eq!(solicited, op.flags.contains(SendFlags::SOLICITED));
            let (opcode, extra) = match op.op {
                SendOp::SendImm(imm) => (WcOpcode::Recv, Extra::Imm(imm)),
                SendOp::SendInv(key) => (WcOpcode::Recv, Extra::Invalidated(key)),
                SendOp::WriteImm { imm, .. } => (WcOpcode::RecvWriteImm, Extra::Imm(imm)),
                _ => (WcOpcode::Recv, Extra::None),
            };
            assert_eq!((completion.opcode, completion.extra), (opcode, extra));
            let got = self.gather_region(&reception.sges, plan::RECEIVE);
            let sent = match op.op {
                SendOp::WriteImm { .. } => &[],
                _ => &op.bytes[..],
            };
            assert!(got.starts_with(sent), "message {}", self.receptions_checked);
            assert!(got[sent.len()..].iter().all(|&byte| byte == UNTOUCHED));
            let upto = reception.op + 1;
            self.receptions_checked += 1;
            self.check_target(upto, &target);
        }
    }

    /// Checks that `target` is as the first `upto` operations of the peer leave it.
    fn check_target(&mut self, upto: usize, target: &[u8]) {
        for op in &self.peer_plan.ops[self.applied..upto] {
            if let Some((at, bytes)) = &op.effect {
                self.target[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        self.applied = upto;
        assert!(
            target == self.target,
            "the target after operation {}",
            upto - 1
        );
    }

    /// Whether all planned work of this side has completed.
    pub fn is_done(&self) -> bool {
        self.posted == self.plan.ops.len()
            && self.signaled.is_empty()
            && self.receptions_checked == self.peer_plan.receptions.len()
            && self.qp.state() == QpState::Rts
    }

    /// Returns a line about the progress, for failures.
    pub fn progress(&self) -> String {
        format!(
            "{:?}: posted {} of {}, {} completions due, {} received, {:?}",
            self.qp.state(),
            self.posted,
            self.plan.ops.len(),
            self.signaled.len(),
            self.receptions_checked,
            self.qp.counters(),
        )
    }

    /// Checks the final state, after all packets have arrived.
    pub fn check_end(&mut self) {
        let target = self.region(plan::TARGET).clone();
        self.check_target(self.peer_plan.ops.len(), &target);
        assert_eq!(self.target, self.peer_plan.target_after);
        assert_eq!(*self.region(plan::SOURCE), self.plan.source);
        assert!(self.host.invalidatable.borrow().is_empty());
        assert_eq!(*self.host.local.borrow(), self.plan.local);
        for qp in self.qps() {
            assert_eq!(qp.deadline(), Time::NEVER, "a timer runs at the end");
            let counters = qp.counters();
            assert_eq!(counters.malformed, 0);
            assert_eq!(counters.wrong_source, 0);
            assert_eq!(counters.fatal_naks_sent(), 0);
        }
    }
}

/// The minimum pause before a program retries to post to a full queue.
const FULL_PAUSE: Duration = Duration::from_micros(100);

/// The content of unwritten bytes of receives and the sink.
const UNTOUCHED: u8 = 0xee;
