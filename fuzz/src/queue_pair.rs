//! The story of one queue pair: what its program does, and what its peer sends, which may be anything.
//!
//! The peer is the fuzzer. Its packets are well-formed and mostly near the PSNs that the queue pair
//! expects, or else they would hardly get past the first check; bytes of any kind are the business
//! of the `packet` target, whose findings are the same for all services.

use crate::host::{Host, LOCAL, NO_KEY, Outstanding, READ_ONLY, REGION, REMOTE, SRQ, base};
use arbitrary::Arbitrary;
use std::net::Ipv4Addr;
use std::time::Duration;
use urxe_proto::host::{Access, Transmit, WindowBind};
use urxe_proto::ids::{Gid, LKey, PKey, QKey, Qpn, RKey, Srqn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{
    AddressVector, AttrMask, QpAttr, QpState, QpType, TransitionError, way_to_rts,
};
use urxe_proto::queue::{PostError, SendQueueSize};
use urxe_proto::rc::congestion::Algorithm;
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::uc::{UcConfig, UcQp};
use urxe_proto::ud::{NetworkHeader, UdConfig, UdQp};
use urxe_proto::wire::{
    Aeth, AtomicEth, Deth, Feth, Header, Headers, Opcode, OpcodeInfo, Operation, Packet, Reth,
    Syndrome, Transport, Xrceth,
};
use urxe_proto::work::{Destination, Payload, SendFlags, SendOp, SendWr, Sge, UdDestination};

const QKEY: QKey = QKey(0x1111_1111);
const OWN_QPN: Qpn = Qpn::new(0x11);
const PEER_QPN: Qpn = Qpn::new(0x22);
const MAX_INLINE: usize = 64;

/// Tells the story that `bytes` make.
///
/// # Panics
/// When a rule is broken.
pub fn check(bytes: &[u8]) {
    crate::told(bytes, |story: Story| story.tell());
}

/// What happens.
#[derive(Arbitrary, Debug)]
pub struct Story {
    service: Service,
    shared: bool,
    signal_all: bool,
    start: Start,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    Rc,
    XrcInitiator,
    XrcTarget,
    Uc,
    Ud,
}

/// What the connection is made with.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Start {
    mtu: u8,
    access: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    /// So that PSNs wrap, or not.
    psns: [u8; 2],
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Arrive(Arrival),
    Send(Send),
    Receive([u16; 2]),
    Poll(u8),
    Wait(u32),
    Expire,
    Modify {
        state: u8,
        mask: u32,
        start: Start,
    },
    /// To the next of RESET, INIT, RTR, RTS, with all that it takes.
    Advance,
    Fail,
}

/// A packet.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Arrival {
    opcode: u8,
    /// How far from the PSN that would fit.
    psn: i8,
    flags: u8,
    key: u8,
    offset: Offset,
    length: Length,
    syndrome: u8,
    msn: u8,
    number: u64,
    payload: Length,
    from_peer: FromPeer,
}

/// Mostly the peer.
#[derive(Arbitrary, Clone, Copy, PartialEq, Eq, Debug)]
enum FromPeer {
    Yes,
    YesAsWell,
    YesOfCourse,
    No,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Offset {
    Zero,
    Aligned(u8),
    Any(u16),
    FromEnd(u8),
    Wild(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Length {
    Zero,
    Mtu,
    Mtus(u8),
    Small(u8),
    Any(u16),
    Wild(u32),
}

/// A send work request.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Send {
    op: u8,
    flags: u8,
    key: u8,
    offset: Offset,
    remote: Offset,
    lengths: [Length; 2],
    elements: u8,
    inline: bool,
    number: u64,
}

fn key(choice: u8) -> u32 {
    match choice % 16 {
        0 => NO_KEY,
        1 | 2 => LOCAL,
        3 => READ_ONLY,
        _ => REMOTE,
    }
}

fn local_key(choice: u8) -> u32 {
    match choice % 16 {
        0 => NO_KEY,
        1 => READ_ONLY,
        _ => LOCAL,
    }
}

impl Offset {
    fn get(self) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Aligned(n) => u64::from(n) * 8,
            Self::Any(n) => u64::from(n),
            Self::FromEnd(n) => REGION as u64 - u64::from(n),
            Self::Wild(n) => n,
        }
    }
}

impl Length {
    fn get(self, mtu: usize) -> u32 {
        match self {
            Self::Zero => 0,
            Self::Mtu => mtu as u32,
            Self::Mtus(n) => u32::from(n % 16) * mtu as u32,
            Self::Small(n) => n.into(),
            Self::Any(n) => n.into(),
            Self::Wild(n) => n,
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "there is one")]
enum Machine {
    Rc(RcQp),
    Uc(UcQp),
    Ud(UdQp),
}

macro_rules! each {
    ($machine:expr, $qp:ident => $ask:expr) => {
        match $machine {
            Machine::Rc($qp) => $ask,
            Machine::Uc($qp) => $ask,
            Machine::Ud($qp) => $ask,
        }
    };
}

/// Whether a packet may be acknowledged.
fn is_answered(info: &OpcodeInfo) -> bool {
    info.operation.is_request() || info.operation == Operation::Mark
}

/// A queue pair, its host, and what was seen of it.
struct Scene {
    service: Service,
    signal_all: bool,
    machine: Machine,
    host: Host,
    now: Time,
    mtu: usize,
    next_wr: u64,
    /// Answers that the requests of this life may have, and acknowledgements that went out for them.
    requests: u64,
    acknowledgements: u64,
    /// Bytes of requests that came ahead of their turn.
    ahead: usize,
    grants: Grants,
}

/// What a connection may send that it has not sent before.
#[derive(Clone, Copy, Default)]
struct Grants {
    /// In packets; `None` if it needs no grants.
    left: Option<u32>,
    /// One past the newest packet.
    sent_end: Psn,
}

fn peer() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 2))
}

fn stranger() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 3))
}

impl Start {
    fn attributes(self, state: QpState) -> QpAttr {
        let psn = |choice: u8| Psn::new(0x100_0000 - 128 + u32::from(choice));
        let mut access = Access::empty();
        for (bit, right) in [
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
        ]
        .into_iter()
        .enumerate()
        {
            // Mostly all.
            access.set(right, (self.access >> (2 * bit)) & 3 != 0);
        }
        QpAttr {
            state,
            access,
            qkey: QKEY,
            av: AddressVector {
                dgid: peer(),
                is_global: true,
                ..AddressVector::default()
            },
            path_mtu: Mtu::ALL[usize::from(self.mtu) % 2],
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            rq_psn: psn(self.psns[0]),
            sq_psn: psn(self.psns[1]),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            dest_qpn: PEER_QPN,
            ..QpAttr::default()
        }
    }

    /// The same with values that are in range.
    fn tamed(self) -> Self {
        Start {
            timeout: self.timeout % 32,
            retry_cnt: self.retry_cnt % 8,
            rnr_retry: self.rnr_retry % 8,
            max_rd_atomic: self.max_rd_atomic % 17,
            max_dest_rd_atomic: self.max_dest_rd_atomic % 17,
            min_rnr_timer: self.min_rnr_timer % 32,
            ..self
        }
    }
}

impl Service {
    fn kind(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::XrcInitiator => QpType::XrcIni,
            Self::XrcTarget => QpType::XrcTgt,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::XrcInitiator | Self::XrcTarget => Transport::Xrc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
        }
    }
}

impl Story {
    fn tell(&self) {
        let mut scene = Scene::new(self);
        // A bit that the attribute does not take.
        if self.start.min_rnr_timer & 0x20 != 0 {
            scene.require_grants();
        }
        for _ in 0..3 {
            scene.advance(self.start.tamed());
        }
        for step in &self.steps {
            scene.step(step, self.start.tamed());
            scene.check();
        }
        scene.end();
    }
}

impl Scene {
    fn new(story: &Story) -> Self {
        let send = SendQueueSize {
            max_wr: if story.service == Service::XrcTarget {
                0
            } else {
                8
            },
            max_sge: 2,
            max_inline: MAX_INLINE as u32,
        };
        let signal_all = story.signal_all;
        let qpn = OWN_QPN;
        let machine = match story.service {
            Service::Rc | Service::XrcInitiator | Service::XrcTarget => Machine::Rc(
                RcQp::new(RcConfig {
                    service: story.service.kind(),
                    qpn,
                    send,
                    signal_all,
                    window_bytes: 64 * 1024,
                    hold_bytes: 8 * 1024,
                    congestion: Algorithm::default(),
                })
                .expect("memory"),
            ),
            Service::Uc => {
                let config = UcConfig {
                    qpn,
                    send,
                    signal_all,
                };
                let mut qp = UcQp::new(config).expect("memory");
                qp.mark_every(if signal_all { 1024 } else { 0 });
                Machine::Uc(qp)
            }
            Service::Ud => Machine::Ud(
                UdQp::new(UdConfig {
                    qpn,
                    send,
                    signal_all,
                    mtu: Mtu::B512,
                })
                .expect("memory"),
            ),
        };
        let xrc = matches!(story.service, Service::XrcInitiator | Service::XrcTarget);
        Scene {
            service: story.service,
            signal_all,
            machine,
            host: Host::new(story.shared || xrc),
            now: Time(1_000_000_000),
            mtu: 256,
            next_wr: 0,
            requests: 0,
            acknowledgements: 0,
            ahead: 0,
            grants: Grants::default(),
        }
    }

    fn require_grants(&mut self) {
        if let Machine::Rc(qp) = &mut self.machine {
            qp.require_grants(true);
            self.grants.left = Some(0);
        }
    }

    /// Has no effect on what needs no grants.
    fn grant(&mut self, bytes: u32) {
        if let Machine::Rc(qp) = &mut self.machine {
            qp.grant(bytes);
            let packets = bytes / self.mtu as u32;
            self.grants.left = self.grants.left.map(|left| left.max(packets));
        }
    }

    /// No more has gone out for the first time than was granted.
    fn spend_grants(&mut self) {
        let attr = self.attributes();
        if !attr.state.initiates() {
            return;
        }
        let new = attr.sq_psn.diff(self.grants.sent_end);
        if new > 0 {
            self.grants.sent_end = attr.sq_psn;
        }
        if let Some(left) = &mut self.grants.left {
            let new = new.max(0) as u32;
            assert!(new <= *left, "{new} packets with a grant for {left}");
            *left -= new;
        }
    }

    /// Whether its packets are of this transport; unreliable connections have marks beside their own.
    fn has(&self, transport: Transport) -> bool {
        transport == self.service.transport()
            || (transport == Transport::Own && self.service == Service::Uc)
    }

    fn state(&self) -> QpState {
        each!(&self.machine, qp => qp.state())
    }

    fn attributes(&self) -> QpAttr {
        each!(&self.machine, qp => qp.attributes())
    }

    fn deadline(&self) -> Time {
        match &self.machine {
            Machine::Rc(qp) => qp.deadline(),
            Machine::Uc(qp) => qp.deadline(),
            Machine::Ud(_) => Time::NEVER,
        }
    }

    fn modify(&mut self, attr: &QpAttr, mask: AttrMask) -> Result<(), TransitionError> {
        let before = self.attributes();
        let (now, host) = (self.now, &mut self.host);
        let result = each!(&mut self.machine, qp => qp.modify(attr, mask, now, host));
        let after = self.attributes();
        self.host.granted.set(after.access);
        self.mtu = after.path_mtu.bytes();
        if !before.state.initiates() {
            self.grants.sent_end = after.sq_psn;
        }
        match result {
            Err(_) => assert_eq!(before, after, "a refused change changes nothing"),
            Ok(()) if mask.contains(AttrMask::STATE) => {
                assert_eq!(after.state, attr.state);
                if after.state == QpState::Reset {
                    self.host.forget();
                    self.requests = 0;
                    self.acknowledgements = 0;
                }
            }
            Ok(()) => {}
        }
        result
    }

    fn advance(&mut self, start: Start) {
        let [init, rtr, rts] = way_to_rts(self.service.kind()).map(|(_, mask)| mask);
        let (state, mask) = match self.state() {
            QpState::Reset => (QpState::Init, init),
            QpState::Init => (QpState::Rtr, rtr),
            QpState::Rtr => (QpState::Rts, rts),
            QpState::Rts => (QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY),
            QpState::Sqd | QpState::Sqe => (QpState::Rts, AttrMask::empty()),
            QpState::Err => (QpState::Reset, AttrMask::empty()),
        };
        let attr = QpAttr {
            en_sqd_async_notify: start.access & 1 != 0,
            ..start.attributes(state)
        };
        let service = self.service;
        self.modify(&attr, mask | AttrMask::STATE)
            .unwrap_or_else(|error| {
                // XRC targets send nothing, so there is nothing to drain.
                assert_eq!(service, Service::XrcTarget, "to {state:?}: {error}");
            });
    }

    fn step(&mut self, step: &Step, start: Start) {
        match step {
            Step::Arrive(arrival) => self.arrive(arrival),
            Step::Send(send) => self.send(send),
            Step::Receive(lengths) => self.receive(lengths),
            Step::Poll(room) => {
                // Half of them with a grant.
                self.grant(u32::from(room / 2) * u32::from(room % 2) * 512);
                self.poll((*room).into());
            }
            Step::Wait(us) => self.now = self.now + Duration::from_micros((*us).into()),
            Step::Expire => {
                let deadline = self.deadline();
                if deadline != Time::NEVER {
                    self.now = self.now.max(deadline);
                }
                let (now, host) = (self.now, &mut self.host);
                match &mut self.machine {
                    Machine::Rc(qp) => qp.handle_timeout(now, host),
                    Machine::Uc(qp) => qp.handle_timeout(now),
                    Machine::Ud(_) => {}
                }
            }
            Step::Modify { state, mask, start } => {
                let state = QpState::ALL[usize::from(*state) % QpState::ALL.len()];
                let mask = AttrMask::from_bits_truncate(*mask);
                // Whether it is taken is the table's business.
                let _ = self.modify(&start.attributes(state), mask);
            }
            Step::Advance => self.advance(start),
            Step::Fail => {
                let (now, host) = (self.now, &mut self.host);
                each!(&mut self.machine, qp => qp.fail(now, host));
            }
        }
    }

    fn arrive(&mut self, arrival: &Arrival) {
        let (header, payload) = self.packet(arrival);
        let header = header.with_payload_len(payload.len());
        let packet = Packet {
            header,
            payload: &payload,
        };
        // Through the bytes, as everything comes.
        let mut bytes = vec![0; packet.len()];
        packet.emit(&mut bytes);
        let packet = Packet::parse(&bytes).expect("what is emitted is well-formed");
        let from = match arrival.from_peer {
            FromPeer::No => stranger(),
            _ => peer(),
        };
        let connected = self.service != Service::Ud;
        if from == peer() || !connected {
            self.name(&packet.header);
        }
        let before = self.attributes();
        let events = self.host.events.len();
        self.host.written.set(0);
        let (now, host) = (self.now, &mut self.host);
        match &mut self.machine {
            Machine::Rc(qp) => qp.handle_packet(now, from, &packet, host),
            Machine::Uc(qp) => qp.handle_packet(now, from, &packet, host),
            Machine::Ud(qp) => {
                let network = NetworkHeader {
                    source: from,
                    destination: Gid::from(Ipv4Addr::new(192, 0, 2, 1)),
                    traffic_class: arrival.msn,
                    flow_label: 0,
                    hop_limit: 64,
                };
                qp.handle_packet(now, &network, &packet, host);
            }
        }
        let own = packet.payload.len().max(8);
        // What came after a hole may be carried out with what closes it.
        let is_ahead = header.bth.psn.after(before.rq_psn);
        self.ahead += if is_ahead { own } else { 0 };
        let most = own + self.ahead;
        assert!(self.host.written.get() <= most, "more than packets have");
        let silent = !before.state.handles_packets() || (connected && from != peer());
        if silent {
            assert_eq!(self.attributes(), before);
            assert_eq!(self.host.events.len(), events);
            assert_eq!(self.host.written.get(), 0);
        } else if is_answered(header.bth.opcode.info()) {
            // One that came ahead is answered for that, and again when its turn has come.
            self.requests += if is_ahead { 2 } else { 1 };
        }
    }

    /// Notes the memory that a request names.
    fn name(&mut self, header: &Header) {
        if let Some(Reth { addr, rkey, length }) = header.reth {
            self.host.named.push((rkey.0, addr, length.max(8).into()));
        }
        if let Some(atomic) = header.atomic {
            self.host.named.push((atomic.rkey.0, atomic.addr, 8));
        }
    }

    fn packet(&self, arrival: &Arrival) -> (Header, Vec<u8>) {
        let is_own = |opcode: &Opcode| {
            let info = opcode.info();
            self.has(info.transport) && info.operation != Operation::Reserved
        };
        let opcodes = || Opcode::all().filter(is_own);
        let opcode = match arrival.opcode {
            // A reserved one, or another transport's.
            250.. => {
                Opcode::all().nth(usize::from(arrival.psn.unsigned_abs()) % Opcode::all().count())
            }
            n => opcodes().nth(usize::from(n) % opcodes().count()),
        };
        let opcode = opcode.expect("there are so many");
        let info = opcode.info();
        let attr = self.attributes();
        let near = match info.operation.is_request() {
            true => attr.rq_psn,
            false => attr.sq_psn,
        };
        let psn = match arrival.psn {
            i8::MIN => near + (1 << 23),
            0.. => near + u32::from(arrival.psn.unsigned_abs() / 16),
            _ => near - u32::from(arrival.psn.unsigned_abs() / 2),
        };
        let mut header = Header::new(opcode, OWN_QPN, psn)
            .with_ack_req(arrival.flags & 1 != 0)
            .with_solicited(arrival.flags & 2 != 0);
        if arrival.flags & 0xf0 == 0xf0 {
            header.bth.pkey = PKey(arrival.number as u16);
        }
        let rkey = RKey(key(arrival.key));
        let addr = base(rkey.0).wrapping_add(arrival.offset.get());
        let length = arrival.length.get(self.mtu);
        let has = info.headers;
        if has.contains(Headers::DETH) {
            let qkey = match arrival.flags & 0x0c {
                0 => QKey(arrival.number as u32),
                _ => QKEY,
            };
            header = header.with_deth(Deth {
                qkey,
                src_qp: PEER_QPN,
            });
        }
        if has.contains(Headers::XRCETH) {
            let srqn = match arrival.flags & 0x0c {
                0 => Srqn::new(arrival.number as u32),
                _ => SRQ,
            };
            header = header.with_xrceth(Xrceth { srqn });
        }
        if has.contains(Headers::RETH) {
            header = header.with_reth(Reth { addr, rkey, length });
        }
        if has.contains(Headers::FETH) {
            header = header.with_feth(Feth::from_bits_truncate(arrival.number as u32 as _));
        }
        if has.contains(Headers::ATOMIC_ETH) {
            header = header.with_atomic(AtomicEth {
                addr,
                rkey,
                swap_or_add: arrival.number,
                compare: arrival.number.rotate_left(7),
            });
        }
        if has.contains(Headers::AETH) {
            header = header.with_aeth(Aeth {
                syndrome: Syndrome::from_byte(arrival.syndrome),
                msn: arrival.msn.into(),
            });
        }
        if has.contains(Headers::ATOMIC_ACK_ETH) {
            header = header.with_atomic_ack(arrival.number);
        }
        if has.contains(Headers::IMMDT) {
            header = header.with_imm(arrival.number as u32);
        }
        if has.contains(Headers::IETH) {
            header = header.with_ieth(rkey);
        }
        let len = match info.payload {
            urxe_proto::wire::PayloadRule::None => 0,
            urxe_proto::wire::PayloadRule::FullMtu if arrival.flags & 0x40 == 0 => self.mtu,
            _ => arrival.payload.get(self.mtu) as usize % (2 * self.mtu + 1),
        };
        (header, vec![arrival.number as u8; len])
    }

    fn send(&mut self, send: &Send) {
        let rkey = RKey(key(send.key));
        let addr = base(rkey.0).wrapping_add(send.remote.get());
        let number = send.number;
        let (imm, len) = (number as u32, send.lengths[0].get(self.mtu));
        let op = match send.op % 12 {
            0 => SendOp::Send,
            1 => SendOp::SendImm(imm),
            2 => SendOp::SendInv(rkey),
            3 => SendOp::Write { addr, rkey },
            4 => SendOp::WriteImm { addr, rkey, imm },
            5 => SendOp::Read { addr, rkey },
            6 => SendOp::CompareSwap {
                addr,
                rkey,
                compare: number,
                swap: !number,
            },
            7 => SendOp::FetchAdd {
                addr,
                rkey,
                add: number,
            },
            8 => SendOp::AtomicWrite {
                addr,
                rkey,
                value: number.to_ne_bytes(),
            },
            9 => SendOp::Flush {
                addr,
                rkey,
                len,
                how: Feth::from_bits_truncate(imm as _),
            },
            10 => SendOp::BindMw(WindowBind {
                window: rkey,
                new_key: rkey,
                region: LKey(LOCAL),
                addr,
                len: len.into(),
                access: Access::REMOTE_READ,
            }),
            _ => SendOp::LocalInv(rkey),
        };
        let lkey = LKey(local_key(send.key));
        let sges = send.lengths.map(|length| Sge {
            addr: base(lkey.0).wrapping_add(send.offset.get()),
            length: length.get(self.mtu),
            lkey,
        });
        let sges = &sges[..usize::from(send.elements % 3)];
        let data = [0x42; MAX_INLINE + 1];
        let payload = match send.inline {
            true => Payload::Inline(&data[..(number % 66) as usize]),
            false => Payload::Sges(sges),
        };
        let dest = match self.service {
            Service::XrcInitiator => Some(Destination::Shared(SRQ)),
            Service::Ud => Some(Destination::Datagram(UdDestination {
                handle: number % 3,
                qpn: PEER_QPN,
                qkey: QKEY,
            })),
            _ => None,
        };
        let flags = SendFlags::from_bits_truncate(send.flags.into()) - SendFlags::INLINE;
        let wr = SendWr {
            wr_id: self.next_wr,
            op,
            flags,
            payload,
            dest,
        };
        let due = Outstanding {
            wr_id: wr.wr_id,
            signaled: self.signal_all || flags.contains(SendFlags::SIGNALED),
            sink: match send.inline || !op.has_response() {
                true => Vec::new(),
                false => sges.to_vec(),
            },
        };
        // It may complete before posting returns.
        self.host.sends_due.push_back(due);
        let state = self.state();
        let (now, host) = (self.now, &mut self.host);
        match each!(&mut self.machine, qp => qp.post_send(&wr, now, host)) {
            Ok(()) => {
                assert!(state.takes_sends(), "a send in {state:?}");
                self.next_wr += 1;
            }
            Err(error) => {
                assert!(error != PostError::State || !state.takes_sends());
                self.host.sends_due.pop_back();
            }
        }
    }

    fn receive(&mut self, lengths: &[u16; 2]) {
        if !self.state().takes_receives() {
            return;
        }
        let sges = lengths.map(|length| Sge {
            addr: base(LOCAL) + u64::from(length % 64),
            length: length.into(),
            // One in 16 is not to be had.
            lkey: LKey(if length >= 0xf000 { NO_KEY } else { LOCAL }),
        });
        let wr_id = self.next_wr;
        if self.host.receives.post(wr_id, &sges).is_ok() {
            self.next_wr += 1;
            self.host.receives_due.push_back(wr_id);
            let host = &mut self.host;
            each!(&mut self.machine, qp => qp.receive_posted(host));
        }
    }

    fn poll(&mut self, room: usize) {
        let attr = self.attributes();
        let mut sink = Sink {
            now: self.now,
            room,
            staged: Vec::new(),
            packets: Vec::new(),
        };
        let (now, host) = (self.now, &mut self.host);
        each!(&mut self.machine, qp => qp.poll_transmit(now, host, &mut sink));
        self.spend_grants();
        let sq_psn = self.attributes().sq_psn;
        for bytes in &sink.packets {
            let packet = Packet::parse(bytes).expect("what is sent is well-formed");
            let info = packet.header.bth.opcode.info();
            assert!(self.has(info.transport), "{packet:?}");
            assert_eq!(packet.header.bth.dest_qp, PEER_QPN);
            assert!(
                info.payload.accepts(packet.payload.len(), self.mtu),
                "{packet:?}"
            );
            if info.operation.is_request() {
                assert!(
                    attr.state.initiates(),
                    "{:?} in {:?}",
                    info.name,
                    attr.state
                );
                if attr.state == QpState::Rts && self.state() == QpState::Rts {
                    let ahead = (packet.header.bth.psn - sq_psn.get()).get();
                    assert!(ahead >= 1 << 23, "a request that was not posted");
                }
            } else if matches!(
                info.operation,
                Operation::Ack | Operation::AtomicAck | Operation::MarkSeen
            ) {
                self.acknowledgements += 1;
            }
        }
        // The NAK that ends a connection may go out three times.
        let repeated = if self.state() == QpState::Err { 2 } else { 0 };
        assert!(
            self.acknowledgements <= self.requests + repeated,
            "more acknowledgements than requests"
        );
    }

    fn check(&self) {
        if self.state() == QpState::Err {
            self.host.assert_flushed();
            assert_eq!(self.deadline(), Time::NEVER);
        }
    }

    /// However it went, the error state ends all that is outstanding.
    fn end(&mut self) {
        self.poll(4096);
        if self.state() != QpState::Reset {
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            self.modify(&attr, AttrMask::STATE)
                .expect("always possible");
            self.check();
        }
    }
}

struct Sink {
    now: Time,
    room: usize,
    staged: Vec<u8>,
    packets: Vec<Vec<u8>>,
}

impl Transmit for Sink {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() >= self.room {
            return None;
        }
        self.staged = vec![0xa5; len];
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
