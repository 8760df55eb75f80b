//! A queue pair while its story is told, and the rules that it keeps.

use super::grants::Grants;
use super::story::{Arrival, FromPeer, Send, Service, Start, Step, Story, peer, stranger};
use super::{OWN_QPN, PEER_QPN};
use crate::host::{Host, LOCAL, NO_KEY, Outstanding, base};
use std::net::Ipv4Addr;
use std::time::Duration;
use urxe_proto::host::Transmit;
use urxe_proto::ids::{Gid, LKey, Source};
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::{AttrMask, QpAttr, QpState, TransitionError, transitions_to_rts};
use urxe_proto::queue::{PostError, SendQueueSize};
use urxe_proto::rc::congestion::Algorithm;
use urxe_proto::rc::{RcConfig, RcQp};
use urxe_proto::time::Time;
use urxe_proto::uc::{UcConfig, UcQp};
use urxe_proto::ud::{NetworkHeader, UdConfig, UdQp};
use urxe_proto::wire::{Header, OpcodeInfo, Operation, Packet, Reth};
use urxe_proto::work::{Payload, SendFlags, SendWr, Sge};

const MAX_INLINE: usize = 64;

#[expect(clippy::large_enum_variant, reason = "there is one")]
pub(super) enum Machine {
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
    info.operation.is_request() || info.operation == Operation::FlowProbe
}

/// A queue pair, its host, and what was seen of it.
pub(super) struct Scene {
    service: Service,
    signal_all: bool,
    pub(super) machine: Machine,
    host: Host,
    now: Time,
    pub(super) mtu: usize,
    next_wr: u64,
    /// Answers that the requests of this life may have, and acknowledgements that went out for them.
    requests: u64,
    acknowledgements: u64,
    /// Bytes of requests that came ahead of their turn.
    ahead: usize,
    pub(super) grants: Grants,
}

impl Scene {
    pub(super) fn new(story: &Story) -> Self {
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
                qp.set_probe_interval(if signal_all { 1024 } else { 0 });
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

    fn state(&self) -> QpState {
        each!(&self.machine, qp => qp.state())
    }

    pub(super) fn attributes(&self) -> QpAttr {
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
                // XRC targets send nothing, so there is nothing to drain.
                assert_eq!(service, Service::XrcTarget, "to {state:?}: {error}");
            });
    }

    pub(super) fn step(&mut self, step: &Step, start: Start) {
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
        let (header, payload) = arrival.packet(self.service, &self.attributes());
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
            Machine::Rc(qp) => {
                // In requests nothing else reads this number.
                let port = 0xc000 | u16::from(arrival.msn % 4 == 3);
                qp.handle_packet(now, Source { gid: from, port }, &packet, host);
            }
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
                    assert!(ahead >= 1 << 23, "a request that was not posted");
                }
            } else if matches!(
                info.operation,
                Operation::Ack | Operation::AtomicAck | Operation::FlowProbeEcho
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

    pub(super) fn check(&self) {
        if self.state() == QpState::Err {
            self.host.assert_flushed();
            assert_eq!(self.deadline(), Time::NEVER);
        }
    }

    /// However it went, the error state ends all that is outstanding.
    pub(super) fn end(&mut self) {
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
