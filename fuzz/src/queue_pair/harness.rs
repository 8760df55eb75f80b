//! The harness: a queue pair with its host, and the rules it must follow.

use super::input::{
    Arrival, FromPeer, Input, OWN_QPN, PEER_QPN, Send, Service, Start, Step, other_address, peer,
};
use super::send_quantum::SendQuantum;
use crate::host::{Host, LOCAL, NO_KEY, Outstanding, base};
use std::net::Ipv4Addr;
use std::time::Duration;
use urxe_proto::host::{BatchPlace, Transmit};
use urxe_proto::ids::{Gid, LKey, Source};
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::{AttrMask, QpAttr, QpState, TransitionError, transitions_to_rts};
use urxe_proto::queue::{PostError, SendQueueSize};
use urxe_proto::rc::congestion::{Algorithm, WindowLimits};
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::uc::{UcConfig, UcQp};
use urxe_proto::ud::{NetworkHeader, UdConfig, UdQp};
use urxe_proto::wire::{Header, OpcodeInfo, Operation, Packet, Reth};
use urxe_proto::work::{Payload, SendFlags, SendWr, Sge};

const MAX_INLINE: usize = 64;

#[expect(clippy::large_enum_variant, reason = "only one value exists")]
pub(super) enum AnyQp {
    Rc(RcQp),
    Uc(UcQp),
    Ud(UdQp),
}

macro_rules! each {
    ($any:expr, $qp:ident => $call:expr) => {
        match $any {
            AnyQp::Rc($qp) => $call,
            AnyQp::Uc($qp) => $call,
            AnyQp::Ud($qp) => $call,
        }
    };
}

/// Returns whether a packet may cause a response.
fn may_cause_response(info: &OpcodeInfo) -> bool {
    info.operation.is_request() || info.operation == Operation::FlowProbe
}

/// A queue pair, its host, and the observations that the rules refer to.
pub(super) struct Harness {
    service: Service,
    signal_all: bool,
    qp: AnyQp,
    host: Host,
    now: Time,
    mtu: usize,
    next_wr: u64,
    /// Responses that the requests since RESET may cause, and the acknowledgements sent for them.
    requests: u64,
    acknowledgements: u64,
    /// Bytes of requests that arrived out of order.
    out_of_order: usize,
    quantum: SendQuantum,
}

impl Harness {
    pub(super) fn new(input: &Input) -> Self {
        let send = SendQueueSize {
            max_wr: if input.service == Service::XrcTarget {
                0
            } else {
                8
            },
            max_sge: 2,
            max_inline: MAX_INLINE as u32,
        };
        let signal_all = input.signal_all;
        let qpn = OWN_QPN;
        let qp = match input.service {
            Service::Rc | Service::XrcInitiator | Service::XrcTarget => AnyQp::Rc(
                RcQp::new(RcConfig {
                    service: input.service.kind(),
                    qpn,
                    send,
                    signal_all,
                    window: WindowLimits::fixed(64 * 1024),
                    out_of_order_bytes: 8 * 1024,
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
                qp.set_probe_interval(if signal_all { 1024 } else { 0 });
                AnyQp::Uc(qp)
            }
            Service::Ud => AnyQp::Ud(
                UdQp::new(UdConfig {
                    qpn,
                    send,
                    signal_all,
                    mtu: Mtu::B512,
                })
                .expect("memory"),
            ),
        };
        let xrc = matches!(input.service, Service::XrcInitiator | Service::XrcTarget);
        Harness {
            service: input.service,
            signal_all,
            qp,
            host: Host::new(input.shared || xrc),
            now: Time(1_000_000_000),
            mtu: 256,
            next_wr: 0,
            requests: 0,
            acknowledgements: 0,
            out_of_order: 0,
            quantum: SendQuantum::default(),
        }
    }

    fn state(&self) -> QpState {
        each!(&self.qp, qp => qp.state())
    }

    pub(super) fn attributes(&self) -> QpAttr {
        each!(&self.qp, qp => qp.attributes())
    }

    fn deadline(&self) -> Time {
        match &self.qp {
            AnyQp::Rc(qp) => qp.deadline(),
            AnyQp::Uc(qp) => qp.deadline(),
            AnyQp::Ud(_) => Time::NEVER,
        }
    }

    fn modify(&mut self, attr: &QpAttr, mask: AttrMask) -> Result<(), TransitionError> {
        let before = self.attributes();
        let (now, host) = (self.now, &mut self.host);
        let result = each!(&mut self.qp, qp => qp.modify(attr, mask, now, host));
        let after = self.attributes();
        self.host.granted.set(after.access);
        self.mtu = after.path_mtu.bytes();
        if !before.state.initiates() {
            self.quantum.restart(after.sq_psn);
        }
        match result {
            Err(_) => assert_eq!(before, after, "a failed modify changes nothing"),
            Ok(()) if mask.contains(AttrMask::STATE) => {
                assert_eq!(after.state, attr.state);
                if after.state == QpState::Reset {
                    self.host.reset();
                    self.requests = 0;
                    self.acknowledgements = 0;
                }
            }
            Ok(()) => {}
        }
        result
    }

    pub(super) fn advance(&mut self, start: Start) {
        let [init, rtr, rts] = transitions_to_rts(self.service.kind()).map(|(_, mask)| mask);
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
                // XRC targets do not send, so they have no SQD state.
                assert_eq!(service, Service::XrcTarget, "to {state:?}: {error}");
            });
    }

    /// Makes a reliable connection require send quanta.
    pub(super) fn require_quanta(&mut self) {
        if let AnyQp::Rc(qp) = &mut self.qp {
            self.quantum.require(qp);
        }
    }

    pub(super) fn step(&mut self, step: &Step, start: Start) {
        match step {
            Step::Arrive(arrival) => self.arrive(arrival),
            Step::Send(send) => self.send(send),
            Step::Receive(lengths) => self.receive(lengths),
            Step::Poll(space) => {
                // Odd values come with a quantum.
                let bytes = u32::from(space / 2) * u32::from(space % 2) * 512;
                if let AnyQp::Rc(qp) = &mut self.qp {
                    self.quantum.renew(qp, bytes, self.mtu);
                }
                self.poll((*space).into());
            }
            Step::Wait(us) => self.now = self.now + Duration::from_micros((*us).into()),
            Step::Expire => {
                let deadline = self.deadline();
                if deadline != Time::NEVER {
                    self.now = self.now.max(deadline);
                }
                let (now, host) = (self.now, &mut self.host);
                match &mut self.qp {
                    AnyQp::Rc(qp) => qp.handle_timeout(now, host),
                    AnyQp::Uc(qp) => qp.handle_timeout(now),
                    AnyQp::Ud(_) => {}
                }
            }
            Step::Modify { state, mask, start } => {
                let state = QpState::ALL[usize::from(*state) % QpState::ALL.len()];
                let mask = AttrMask::from_bits_truncate(*mask);
                // The result depends on the transition table, which has tests of its own.
                let _ = self.modify(&start.attributes(state), mask);
            }
            Step::Advance => self.advance(start),
            Step::Fail => {
                let (now, host) = (self.now, &mut self.host);
                each!(&mut self.qp, qp => qp.fail(now, host));
            }
        }
    }

    fn arrive(&mut self, arrival: &Arrival) {
        let (header, payload) = arrival.packet(self.service, &self.attributes());
        let header = header.with_payload_len(payload.len());
        let packet = Packet {
            header,
            payload: &payload,
        };
        // The packet is parsed from its bytes, as a received one is.
        let mut bytes = vec![0; packet.len()];
        packet.emit(&mut bytes);
        let packet = Packet::parse(&bytes).expect("an emitted packet is well-formed");
        let from = match arrival.from_peer {
            FromPeer::No => other_address(),
            _ => peer(),
        };
        let connected = self.service != Service::Ud;
        if from == peer() || !connected {
            self.record_memory(&packet.header);
        }
        let before = self.attributes();
        let events = self.host.events.len();
        self.host.written.set(0);
        let (now, host) = (self.now, &mut self.host);
        match &mut self.qp {
            AnyQp::Rc(qp) => {
                // No other rule of requests depends on the MSN.
                let port = 0xc000 | u16::from(arrival.msn % 4 == 3);
                qp.handle_packet(now, Source { gid: from, port }, &packet, host);
            }
            AnyQp::Uc(qp) => qp.handle_packet(now, from, &packet, host),
            AnyQp::Ud(qp) => {
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
        // A packet after a gap may be executed together with the one that closes the gap.
        let is_out_of_order = header.bth.psn.after(before.rq_psn);
        self.out_of_order += if is_out_of_order { own } else { 0 };
        let most = own + self.out_of_order;
        assert!(
            self.host.written.get() <= most,
            "more bytes than the packets carried"
        );
        let silent = !before.state.handles_packets() || (connected && from != peer());
        if silent {
            assert_eq!(self.attributes(), before);
            assert_eq!(self.host.events.len(), events);
            assert_eq!(self.host.written.get(), 0);
        } else if may_cause_response(header.bth.opcode.info()) {
            // An out-of-order packet may cause a NAK at once, and an ACK when the gap is closed.
            self.requests += if is_out_of_order { 2 } else { 1 };
        }
    }

    /// Records the remote memory that a request addresses.
    fn record_memory(&mut self, header: &Header) {
        if let Some(Reth { addr, rkey, length }) = header.reth {
            let range = (rkey.0, addr, length.max(8).into());
            self.host.requested.push(range);
        }
        if let Some(atomic) = header.atomic {
            self.host.requested.push((atomic.rkey.0, atomic.addr, 8));
        }
    }

    fn send(&mut self, send: &Send) {
        let op = send.op(self.mtu);
        let sges = send.sges(self.mtu);
        let sges = &sges[..usize::from(send.elements % 3)];
        let data = [0x42; MAX_INLINE + 1];
        let payload = match send.inline {
            true => Payload::Inline(&data[..(send.number % 66) as usize]),
            false => Payload::Sges(sges),
        };
        let flags = send.flags();
        let wr = SendWr {
            wr_id: self.next_wr,
            op,
            flags,
            payload,
            dest: send.destination(self.service),
        };
        let due = Outstanding {
            wr_id: wr.wr_id,
            signaled: self.signal_all || flags.contains(SendFlags::SIGNALED),
            response_sges: match send.inline || !op.has_response() {
                true => Vec::new(),
                false => sges.to_vec(),
            },
        };
        // It may complete before posting returns.
        self.host.sends_due.push_back(due);
        let state = self.state();
        let (now, host) = (self.now, &mut self.host);
        match each!(&mut self.qp, qp => qp.post_send(&wr, now, host)) {
            Ok(()) => {
                assert!(state.accepts_sends(), "a send in {state:?}");
                self.next_wr += 1;
            }
            Err(error) => {
                assert!(error != PostError::State || !state.accepts_sends());
                self.host.sends_due.pop_back();
            }
        }
    }

    fn receive(&mut self, lengths: &[u16; 2]) {
        if !self.state().accepts_receives() {
            return;
        }
        let sges = lengths.map(|length| Sge {
            addr: base(LOCAL) + u64::from(length % 64),
            length: length.into(),
            // One in 16 has an invalid key.
            lkey: LKey(if length >= 0xf000 { NO_KEY } else { LOCAL }),
        });
        let wr_id = self.next_wr;
        if self.host.receives.post(wr_id, &sges).is_ok() {
            self.next_wr += 1;
            self.host.receives_due.push_back(wr_id);
            let host = &mut self.host;
            each!(&mut self.qp, qp => qp.receive_posted(host));
        }
    }

    fn poll(&mut self, space: usize) {
        let attr = self.attributes();
        let mut sink = Sink {
            now: self.now,
            space,
            staged: Vec::new(),
            packets: Vec::new(),
        };
        let (now, host) = (self.now, &mut self.host);
        each!(&mut self.qp, qp => qp.poll_transmit(now, host, &mut sink));
        self.quantum.check(&self.attributes());
        let sq_psn = self.attributes().sq_psn;
        for bytes in &sink.packets {
            let packet = Packet::parse(bytes).expect("a sent packet is well-formed");
            let info = packet.header.bth.opcode.info();
            assert!(self.service.has(info.transport), "{packet:?}");
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
                    assert!(
                        ahead >= 1 << 23,
                        "a packet of a request that was not posted"
                    );
                }
            } else if matches!(
                info.operation,
                Operation::Ack | Operation::AtomicAck | Operation::FlowProbeEcho
            ) {
                self.acknowledgements += 1;
            }
        }
        // The NAK that ends a connection may be sent three times.
        let repeated = if self.state() == QpState::Err { 2 } else { 0 };
        assert!(
            self.acknowledgements <= self.requests + repeated,
            "more acknowledgements than requests"
        );
    }

    pub(super) fn check(&self) {
        if self.state() == QpState::Err {
            self.host.assert_flushed();
            assert_eq!(self.deadline(), Time::NEVER);
        }
    }

    /// Enters the error state, which must end all outstanding work requests.
    pub(super) fn end(&mut self) {
        self.poll(4096);
        if self.state() != QpState::Reset {
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            self.modify(&attr, AttrMask::STATE)
                .expect("every state permits a transition to ERR");
            self.check();
        }
    }
}

/// The packets in a batch: fewer than the kernel accepts, so that short windows have several.
const BATCH: usize = 4;

struct Sink {
    now: Time,
    space: usize,
    staged: Vec<u8>,
    packets: Vec<Vec<u8>>,
}

impl Transmit for Sink {
    fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() >= self.space {
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

    fn place_in_batch(&self, _len: usize) -> BatchPlace {
        BatchPlace {
            begins: self.packets.len().is_multiple_of(BATCH),
            ends: (self.packets.len() + 1).is_multiple_of(BATCH),
            capacity: BATCH as u32,
        }
    }
}
