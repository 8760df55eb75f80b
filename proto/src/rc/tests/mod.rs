//! Tests of the reliable connection, named after the rules that they check.
//!
//! In most of them the test plays the peer, packet by packet; others connect two queue pairs.

mod arbitrary_packets;
mod atomic_write_and_flush;
mod batches;
mod congestion;
mod duplicates;
mod errors;
mod final_acks;
mod liveness;
mod local;
mod migration;
mod pacing;
mod recovery;
mod reordering;
mod requester;
mod responder;
mod retries;
mod scoreboard;
mod send_quanta;
mod states;
mod xrc;

use super::*;
use crate::host::{Access, QpEvent};
use crate::ids::{Gid, PKey, RKey};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::AddressVector;
use crate::testing::{
    LOCAL, NO_KEY, READ_ONLY, REGION, REMOTE, Sent, Sink, TestHost, base, pattern, sge,
};
use crate::wire::{
    Aeth, AtomicEth, Credits, Header, Headers, NakCode, Opcode, Reth, RnrTimer, Syndrome,
};
use crate::work::{Extra, Payload, SendFlags, SendOp, Sge, WcOpcode, WcStatus};
use std::time::Duration;

const UNSIGNALED: SendFlags = SendFlags::empty();
const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// The first PSN of the queue pair under test; the next constant is its peer's.
const OWN_PSN: u32 = 100;
const PEER_PSN: u32 = 500;
const MTU: usize = 256;

/// The peer's UDP source port.
const PEER_PORT: u16 = 0xc123;

fn psn(n: u32) -> Psn {
    Psn::new(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A queue pair with its host and a clock.
struct Endpoint {
    qp: RcQp,
    host: TestHost,
    now: Time,
}

fn peer_gid() -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(192, 0, 2, 9).into())
}

/// The source of packets from `gid`.
fn source(gid: Gid) -> Source {
    let port = PEER_PORT;
    Source { gid, port }
}

/// The attributes with which the tests start.
fn attributes() -> QpAttr {
    QpAttr {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        av: AddressVector {
            dgid: peer_gid(),
            is_global: true,
            ..AddressVector::default()
        },
        path_mtu: Mtu::B256,
        timeout: 14,
        retry_cnt: 3,
        rnr_retry: 7,
        rq_psn: psn(PEER_PSN),
        sq_psn: psn(OWN_PSN),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 14,
        dest_qpn: Qpn::new(0x22),
        ..QpAttr::default()
    }
}

const INIT: AttrMask = AttrMask::PKEY_INDEX
    .union(AttrMask::PORT)
    .union(AttrMask::ACCESS_FLAGS);
const RTR: AttrMask = AttrMask::AV
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN)
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);
const RTS: AttrMask = AttrMask::TIMEOUT
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::SQ_PSN)
    .union(AttrMask::MAX_QP_RD_ATOMIC);

impl Endpoint {
    /// An end in RESET.
    fn reset() -> Self {
        Self::of(QpType::Rc)
    }

    /// An end of this service type, in RESET.
    fn of(service: QpType) -> Self {
        Self::with_out_of_order_queue(service, 1 << 20)
    }

    /// An end in RESET whose out-of-order queue has room for `out_of_order_bytes` bytes.
    fn with_out_of_order_queue(service: QpType, out_of_order_bytes: u32) -> Self {
        let config = RcConfig {
            service,
            qpn: Qpn::new(0x11),
            send: SendQueueSize {
                max_wr: 16,
                max_sge: 4,
                max_inline: 512,
            },
            signal_all: false,
            window: WindowLimits::fixed(1 << 20),
            out_of_order_bytes,
            congestion: Algorithm::Loss,
        };
        Endpoint {
            qp: RcQp::new(config).unwrap(),
            host: TestHost::new(),
            now: Time(1_000_000_000),
        }
    }

    /// An end in RTS, with [`attributes`] as modified by `change`.
    fn with(change: impl FnOnce(&mut QpAttr)) -> Self {
        Self::reset().connected(change)
    }

    fn connected(mut self, change: impl FnOnce(&mut QpAttr)) -> Self {
        let mut attr = attributes();
        change(&mut attr);
        self.modify(QpState::Init, INIT, &attr);
        self.modify(QpState::Rtr, RTR, &attr);
        self.modify(QpState::Rts, RTS, &attr);
        self
    }

    fn new() -> Self {
        Self::with(|_| ())
    }

    fn modify(&mut self, state: QpState, mask: AttrMask, attr: &QpAttr) {
        let attr = QpAttr { state, ..*attr };
        self.qp
            .modify(&attr, mask | AttrMask::STATE, self.now, &mut self.host)
            .unwrap();
    }

    /// Moves to `state`, which requires no attributes.
    fn enter(&mut self, state: QpState) {
        self.modify(state, AttrMask::empty(), &attributes());
    }

    fn post(&mut self, wr_id: u64, op: SendOp, flags: SendFlags, sges: &[Sge]) {
        let payload = Payload::Sges(sges);
        let wr = SendWr {
            wr_id,
            op,
            flags,
            payload,
            dest: None,
        };
        self.qp.post_send(&wr, self.now, &mut self.host).unwrap();
    }

    /// Posts a signaled operation of `len` bytes from, or to, local memory.
    fn post_signaled(&mut self, wr_id: u64, op: SendOp, len: usize) {
        self.post(wr_id, op, SIGNALED, &[sge(LOCAL, 0, len)]);
    }

    fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        self.host.receives.post(wr_id, sges).unwrap();
        self.qp.receive_posted(&mut self.host);
    }

    /// Returns the packets that it sends now.
    fn poll(&mut self) -> Vec<Sent> {
        self.poll_room(usize::MAX).0
    }

    /// Advances the clock by `time`. Returns the packets that it sends meanwhile, paced.
    fn poll_for(&mut self, time: Duration) -> Vec<Sent> {
        let end = self.now + time;
        let mut packets = self.poll();
        while self.qp.deadline() < end {
            self.wait_for_deadline();
            packets.append(&mut self.poll());
        }
        self.now = end;
        packets
    }

    /// Returns the packets sent into a sink with room for `room`, and whether more are pending.
    fn poll_room(&mut self, room: usize) -> (Vec<Sent>, bool) {
        let mut sink = Sink::new(self.now, room);
        let is_idle = self.qp.is_idle();
        let more = self.qp.poll_transmit(self.now, &mut self.host, &mut sink);
        assert!(
            !is_idle || sink.packets.is_empty() && !more,
            "{:#?}",
            sink.packets
        );
        (sink.packets, more)
    }

    /// Returns the only packet that it sends now.
    fn poll_one(&mut self) -> Sent {
        let mut packets = self.poll();
        assert_eq!(packets.len(), 1, "{packets:#?}");
        packets.remove(0)
    }

    /// Delivers a packet from the peer.
    fn deliver(&mut self, header: Header, payload: &[u8]) {
        let header = header.with_payload_len(payload.len());
        let packet = Packet { header, payload };
        self.qp
            .handle_packet(self.now, source(peer_gid()), &packet, &mut self.host);
    }

    fn deliver_sent(&mut self, packet: &Sent) {
        self.deliver(packet.header, &packet.payload);
    }

    /// Advances the clock to the next deadline and runs the timers.
    fn wait_for_deadline(&mut self) {
        assert_ne!(self.qp.deadline(), Time::NEVER, "no timer runs");
        self.now = self.now.max(self.qp.deadline());
        self.qp.handle_timeout(self.now, &mut self.host);
    }

    /// Advances the clock.
    fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Returns the send completions since the last call: work request numbers and statuses.
    fn done(&mut self) -> Vec<(u64, WcStatus)> {
        let taken = std::mem::take(&mut self.host.sends);
        taken.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// Returns the receive completions since the last call.
    fn received(&mut self) -> Vec<(u64, WcStatus)> {
        let taken = std::mem::take(&mut self.host.receptions);
        taken.iter().map(|(c, _)| (c.wr_id, c.status)).collect()
    }

    fn events(&mut self) -> Vec<QpEvent> {
        std::mem::take(&mut self.host.events)
    }
}

/// Exchanges packets between two ends until none is left.
fn exchange(a: &mut Endpoint, b: &mut Endpoint) {
    for _ in 0..10_000 {
        let (to_b, to_a) = (a.poll(), b.poll());
        if to_a.is_empty() && to_b.is_empty() {
            return;
        }
        to_b.iter().for_each(|packet| b.deliver_sent(packet));
        to_a.iter().for_each(|packet| a.deliver_sent(packet));
    }
    panic!("the exchange does not end");
}

/// Two connected ends.
fn pair(change: impl Fn(&mut QpAttr)) -> (Endpoint, Endpoint) {
    let a = Endpoint::with(&change);
    let b = Endpoint::with(|attr| {
        attr.rq_psn = psn(OWN_PSN);
        attr.sq_psn = psn(PEER_PSN);
        change(attr);
    });
    (a, b)
}

/// A request of the peer with `opcode`, `offset` PSNs after its first.
fn request(opcode: Opcode, offset: u32) -> Header {
    let mut header = Header::new(opcode, Qpn::new(0x11), psn(PEER_PSN + offset)).with_ack_req(true);
    let extra = opcode.info().headers;
    if extra.contains(Headers::IMMDT) {
        header = header.with_imm(0xabcd_ef01);
    }
    if extra.contains(Headers::IETH) {
        header = header.with_ieth(RKey(REMOTE));
    }
    header
}

/// A request of the peer with a RETH.
fn rdma(opcode: Opcode, offset: u32, key: u32, at: usize, length: usize) -> Header {
    request(opcode, offset).with_reth(Reth {
        addr: base(key) + at as u64,
        rkey: RKey(key),
        length: length as u32,
    })
}

/// An atomic request at offset `at` of the memory of `key`.
fn fetch_add(offset: u32, key: u32, at: usize, add: u64) -> Header {
    request(Opcode::RcFetchAdd, offset).with_atomic(AtomicEth {
        addr: base(key) + at as u64,
        rkey: RKey(key),
        swap_or_add: add,
        compare: 0,
    })
}

/// An answer of the peer, `offset` PSNs after this end's first.
fn answer(opcode: Opcode, offset: u32, syndrome: Syndrome) -> Header {
    let aeth = Aeth { syndrome, msn: 0 };
    let header = Header::new(opcode, Qpn::new(0x11), psn(OWN_PSN + offset));
    if opcode.info().headers.contains(Headers::AETH) {
        header.with_aeth(aeth)
    } else {
        header
    }
}

const UNLIMITED: Syndrome = Syndrome::Ack(Credits::INVALID);

fn ack(offset: u32) -> Header {
    answer(Opcode::RcAck, offset, UNLIMITED)
}

fn nak(offset: u32, code: NakCode) -> Header {
    answer(Opcode::RcAck, offset, Syndrome::Nak(code))
}

fn rnr_nak(offset: u32, timer: u8) -> Header {
    let syndrome = Syndrome::RnrNak(RnrTimer::new(timer));
    answer(Opcode::RcAck, offset, syndrome)
}

fn write_to(at: usize) -> SendOp {
    SendOp::Write {
        addr: base(REMOTE) + at as u64,
        rkey: RKey(REMOTE),
    }
}

fn read_from(at: usize) -> SendOp {
    SendOp::Read {
        addr: base(REMOTE) + at as u64,
        rkey: RKey(REMOTE),
    }
}

fn add(add: u64) -> SendOp {
    SendOp::FetchAdd {
        addr: base(REMOTE),
        rkey: RKey(REMOTE),
        add,
    }
}
