//! Scenarios, named after the rules that they check. The test is the peer, packet by packet, but
//! for the one with random loss, where there are two ends.

use super::*;
use crate::host::Access;
use crate::ids::{QKey, RKey};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::qp::AddressVector;
use crate::testing::{LOCAL, NO_KEY, READ_ONLY, REMOTE, Sent, Sink, TestHost, base, pattern, sge};
use crate::wire::{Header, Headers, Opcode, Reth};
use crate::work::{Destination, Extra, Payload, SendFlags, Sge, UdDestination, WcOpcode, WcStatus};
use Opcode::*;
use WcStatus::{LocLenErr, LocProtErr, Success, WrFlushErr};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const OWN_PSN: u32 = 0xff_ffff;
const PEER_PSN: u32 = 500;
const MTU: usize = 256;

struct End {
    qp: UcQp,
    host: TestHost,
    now: Time,
}

fn peer_gid() -> Gid {
    Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 9))
}

fn attributes() -> QpAttr {
    QpAttr {
        access: Access::REMOTE_WRITE,
        av: AddressVector {
            dgid: peer_gid(),
            is_global: true,
            ..AddressVector::default()
        },
        path_mtu: Mtu::B256,
        rq_psn: Psn::new(PEER_PSN),
        sq_psn: Psn::new(OWN_PSN),
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
    .union(AttrMask::RQ_PSN);

impl End {
    fn reset() -> Self {
        let send = SendQueueSize {
            max_wr: 16,
            max_sge: 4,
            max_inline: 512,
        };
        End {
            qp: UcQp::new(UcConfig {
                qpn: Qpn::new(0x11),
                send,
                signal_all: false,
            }),
            host: TestHost::new(),
            now: Time(1),
        }
    }

    fn with(attr: QpAttr) -> Self {
        let mut end = Self::reset();
        end.go(QpState::Init, INIT, &attr);
        end.go(QpState::Rtr, RTR, &attr);
        end.go(QpState::Rts, AttrMask::SQ_PSN, &attr);
        end
    }

    fn new() -> Self {
        Self::with(attributes())
    }

    fn go(&mut self, state: QpState, mask: AttrMask, attr: &QpAttr) {
        let attr = QpAttr { state, ..*attr };
        let mask = mask | AttrMask::STATE;
        self.qp
            .modify(&attr, mask, self.now, &mut self.host)
            .unwrap();
    }

    fn to(&mut self, state: QpState) {
        self.go(state, AttrMask::empty(), &attributes());
    }

    fn try_post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) -> Result<(), PostError> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
            payload: Payload::Sges(sges),
            dest: None,
        };
        self.qp.post_send(&wr, self.now, &mut self.host)
    }

    /// Posts a signaled operation of `len` bytes of local memory.
    fn post(&mut self, wr_id: u64, op: SendOp, len: usize) {
        self.try_post(wr_id, op, &[sge(LOCAL, 0, len)]).unwrap();
    }

    /// Posts a receive of `len` bytes of local memory.
    fn receive(&mut self, wr_id: u64, len: usize) {
        let sges = [sge(LOCAL, 0, len)];
        self.host.receives.post(wr_id, &sges).unwrap();
        self.qp.receive_posted(&mut self.host);
    }

    fn poll_room(&mut self, room: usize) -> (Vec<Sent>, bool) {
        let mut sink = Sink::new(self.now, room);
        let more = self.qp.poll_transmit(self.now, &mut self.host, &mut sink);
        (sink.packets, more)
    }

    fn poll(&mut self) -> Vec<Sent> {
        let (packets, more) = self.poll_room(usize::MAX);
        assert!(!more);
        packets
    }

    fn give(&mut self, header: Header, payload: &[u8]) {
        let header = header.with_payload_len(payload.len());
        let packet = Packet { header, payload };
        self.qp
            .handle_packet(self.now, peer_gid(), &packet, &mut self.host);
    }

    /// What completed at the send queue since last asked.
    fn done(&mut self) -> Vec<(u64, WcStatus)> {
        let taken = std::mem::take(&mut self.host.sends);
        taken.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// The same at the receive queue.
    fn received(&mut self) -> Vec<(u64, WcStatus)> {
        let taken = std::mem::take(&mut self.host.receptions);
        taken.iter().map(|(c, _)| (c.wr_id, c.status)).collect()
    }
}

/// A packet of the peer's, `offset` packets after its first.
fn packet(opcode: Opcode, offset: u32) -> Header {
    let header = Header::new(opcode, Qpn::new(0x11), Psn::new(PEER_PSN + offset));
    if opcode.info().headers.contains(Headers::IMMDT) {
        header.with_imm(0xabcd_ef01)
    } else {
        header
    }
}

fn rdma(opcode: Opcode, offset: u32, key: u32, at: usize, length: usize) -> Header {
    packet(opcode, offset).with_reth(Reth {
        addr: base(key) + at as u64,
        rkey: RKey(key),
        length: length as u32,
    })
}

fn write_to(at: usize) -> SendOp {
    SendOp::Write {
        addr: base(REMOTE) + at as u64,
        rkey: RKey(REMOTE),
    }
}

#[test]
fn packets_have_consecutive_psns_and_ask_for_no_acknowledgement() {
    let mut end = End::new();
    end.post(1, SendOp::SendImm(7), 2 * MTU + 3);
    end.post(2, write_to(8), MTU + 1);
    let packets = end.poll();
    let opcodes: Vec<_> = packets.iter().map(Sent::opcode).collect();
    let expected = [
        UcSendFirst,
        UcSendMiddle,
        UcSendLastImm,
        UcWriteFirst,
        UcWriteLast,
    ];
    assert_eq!(opcodes, expected);
    let psns: Vec<_> = packets.iter().map(Sent::psn).collect();
    assert_eq!(psns, [0xff_ffff, 0, 1, 2, 3]);
    assert!(packets.iter().all(|p| !p.header.bth.ack_req));
    assert!(
        packets
            .iter()
            .all(|p| p.header.bth.dest_qp == Qpn::new(0x22))
    );
    let solicited: Vec<_> = packets.iter().map(|p| p.header.bth.solicited).collect();
    assert_eq!(solicited, [false, false, true, false, false]);
    let data: Vec<_> = packets[..3]
        .iter()
        .flat_map(|p| p.payload.clone())
        .collect();
    let expected: Vec<_> = (0..2 * MTU + 3).map(|i| pattern(LOCAL, i)).collect();
    assert_eq!(data, expected);
    assert_eq!(packets[2].header.imm, Some(7));
    let reth = packets[3].header.reth.unwrap();
    assert_eq!((reth.addr, reth.length), (base(REMOTE) + 8, MTU as u32 + 1));
    assert_eq!(end.qp.attributes().sq_psn, Psn::new(4));
    assert_eq!(end.qp.deadline(), Time::NEVER);
}

#[test]
fn a_work_request_is_done_when_its_last_packet_has_gone() {
    let mut end = End::new();
    end.post(1, SendOp::Send, 3 * MTU);
    assert_eq!(end.done(), []);
    let (packets, more) = end.poll_room(2);
    assert_eq!((packets.len(), more), (2, true));
    assert_eq!(end.done(), []);
    assert_eq!(end.qp.send_queue_room(), 15);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.host.sends[0].opcode, WcOpcode::Send);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.send_queue_room(), 16);
}

#[test]
fn what_is_not_signaled_makes_no_completion() {
    let mut end = End::new();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Inline(&[1, 2, 3]),
        dest: None,
    };
    end.qp.post_send(&wr, end.now, &mut end.host).unwrap();
    assert_eq!(end.poll()[0].payload, [1, 2, 3]);
    assert_eq!(end.done(), []);
}

#[test]
fn a_connection_has_one_destination_whatever_a_work_request_says() {
    let mut end = End::new();
    let elsewhere = UdDestination {
        handle: 1,
        qpn: Qpn::new(0x99),
        qkey: QKey(1),
    };
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[sge(LOCAL, 0, MTU + 1)]),
        dest: Some(Destination::Datagram(elsewhere)),
    };
    end.qp.post_send(&wr, end.now, &mut end.host).unwrap();
    let packets = end.poll();
    let goes_to: Vec<_> = packets.iter().map(|p| p.header.bth.dest_qp.get()).collect();
    assert_eq!(goes_to, [0x22, 0x22]);
}

#[test]
fn what_needs_an_answer_is_refused() {
    let mut end = End::new();
    let (addr, rkey) = (base(REMOTE), RKey(REMOTE));
    let ops = [
        SendOp::SendInv(rkey),
        SendOp::Read { addr, rkey },
        SendOp::FetchAdd { addr, rkey, add: 1 },
        SendOp::CompareSwap {
            addr,
            rkey,
            compare: 0,
            swap: 1,
        },
    ];
    for op in ops {
        let posted = end.try_post(1, op, &[sge(LOCAL, 0, 8)]);
        assert_eq!(posted, Err(PostError::Operation));
    }
    assert_eq!(end.poll(), []);
}

/// 10.3.1.6.
#[test]
fn a_local_error_ends_in_sqe_from_where_rts_is_reached() {
    let mut end = End::new();
    end.post(1, SendOp::Send, MTU);
    end.try_post(2, SendOp::Send, &[sge(LOCAL, 0, MTU), sge(NO_KEY, 0, MTU)])
        .unwrap();
    end.post(3, SendOp::Send, 1);
    // The first packet of the second goes before its other half is looked at.
    assert_eq!(end.poll().len(), 2);
    assert_eq!(end.done(), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Sqe);
    end.post(4, SendOp::Send, 1);
    assert_eq!(end.done(), [(4, WrFlushErr)]);
    // Receiving goes on.
    end.receive(9, MTU);
    end.give(packet(UcSendOnly, 0), b"abc");
    assert_eq!(end.received(), [(9, Success)]);

    end.to(QpState::Rts);
    end.post(5, SendOp::Send, 1);
    let packets = end.poll();
    assert_eq!((packets[0].opcode(), packets[0].psn()), (UcSendOnly, 1));
    assert_eq!(end.done(), [(5, Success)]);
}

/// 10.3.1.5.
#[test]
fn sqd_finishes_the_message_under_way_and_begins_none() {
    let mut end = End::new();
    end.post(1, SendOp::Send, 2 * MTU);
    end.post(2, SendOp::Send, 1);
    assert_eq!(end.poll_room(1).0.len(), 1);
    let attr = QpAttr {
        en_sqd_async_notify: true,
        ..attributes()
    };
    end.go(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &attr);
    assert!(end.qp.attributes().sq_draining);
    assert_eq!(end.host.events, []);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.host.events, [QpEvent::SendQueueDrained]);
    assert!(!end.qp.attributes().sq_draining);
    end.to(QpState::Rts);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.done(), [(2, Success)]);
}

#[test]
fn a_send_fills_a_receive_and_tells_its_immediate_data() {
    let mut end = End::new();
    end.receive(1, MTU + 5);
    end.give(packet(UcSendFirst, 0), &[1; MTU]);
    assert_eq!(end.received(), []);
    let mut last = packet(UcSendLastImm, 1);
    last.bth.solicited = true;
    end.give(last, &[2; 5]);
    let (completion, solicited) = end.host.receptions[0];
    assert!(solicited);
    assert_eq!(
        (completion.opcode, completion.byte_len),
        (WcOpcode::Recv, MTU as u32 + 5)
    );
    assert_eq!(completion.extra, Extra::Imm(0xabcd_ef01));
    assert_eq!(end.host.bytes(LOCAL, MTU - 1, 3), [1, 2, 2]);
    assert_eq!(end.poll(), [], "nothing is answered");
}

#[test]
fn a_write_takes_a_receive_only_for_its_immediate_data() {
    let mut end = End::new();
    end.receive(1, 0);
    end.give(rdma(UcWriteFirst, 0, REMOTE, 16, MTU + 1), &[3; MTU]);
    end.give(packet(UcWriteLast, 1), &[4]);
    assert_eq!(end.host.bytes(REMOTE, 16 + MTU - 1, 2), [3, 4]);
    assert_eq!(end.received(), []);
    end.give(rdma(UcWriteOnlyImm, 2, REMOTE, 0, 2), &[5; 2]);
    let (completion, _) = end.host.receptions[0];
    assert_eq!(
        (completion.opcode, completion.byte_len),
        (WcOpcode::RecvWriteImm, 2)
    );
    assert_eq!(end.received(), [(1, Success)]);
}

/// 9.8.2.2.
#[test]
fn a_message_with_a_hole_is_dropped_and_the_next_takes_its_receive() {
    let mut end = End::new();
    end.receive(1, 4 * MTU);
    end.receive(2, 4 * MTU);
    end.give(packet(UcSendFirst, 0), &[1; MTU]);
    end.give(packet(UcSendMiddle, 2), &[1; MTU]);
    end.give(packet(UcSendLast, 3), &[1; MTU]);
    assert_eq!(end.received(), []);
    end.give(packet(UcSendOnly, 4), &[9; 4]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.host.bytes(LOCAL, 0, 4), [9; 4]);
    let counters = *end.qp.counters();
    assert_eq!(
        (counters.incomplete_messages, counters.out_of_sequence),
        (1, 1)
    );
    assert_eq!(end.qp.attributes().rq_psn, Psn::new(PEER_PSN + 5));
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn without_its_first_packet_a_message_is_dropped() {
    let mut end = End::new();
    end.receive(1, 4 * MTU);
    end.give(packet(UcSendMiddle, 1), &[1; MTU]);
    end.give(packet(UcSendLast, 2), &[1; MTU]);
    end.give(rdma(UcWriteFirst, 3, REMOTE, 0, 2 * MTU), &[1; MTU]);
    end.give(packet(UcSendLast, 5), &[1; 3]);
    assert_eq!(end.received(), []);
    assert_eq!(end.qp.counters().incomplete_messages, 2);
    // A message begins at whatever PSN.
    end.give(packet(UcSendFirst, 1000), &[2; MTU]);
    end.give(packet(UcSendLast, 1001), &[3; 1]);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.host.bytes(LOCAL, MTU - 1, 2), [2, 3]);
}

#[test]
fn an_opcode_that_does_not_follow_ends_the_message_and_may_begin_another() {
    let mut end = End::new();
    end.receive(1, 4 * MTU);
    end.give(packet(UcSendFirst, 0), &[1; MTU]);
    // In sequence, yet of another message.
    end.give(packet(UcSendFirst, 1), &[2; MTU]);
    end.give(packet(UcSendLast, 2), &[2; 1]);
    assert_eq!(end.host.receptions[0].0.byte_len, MTU as u32 + 1);
    assert_eq!(end.received(), [(1, Success)]);
    assert_eq!(end.qp.counters().incomplete_messages, 1);
    end.receive(2, 4 * MTU);
    end.give(packet(UcSendFirst, 3), &[1; MTU]);
    end.give(packet(UcWriteLast, 4), &[1; 1]);
    assert_eq!(end.qp.counters().incomplete_messages, 2);
    end.give(packet(UcSendLast, 5), &[1; 1]);
    assert_eq!(end.received(), []);
}

#[test]
fn a_message_without_a_receive_is_dropped_as_a_whole() {
    let mut end = End::new();
    end.give(packet(UcSendFirst, 0), &[1; MTU]);
    end.receive(1, 4 * MTU);
    end.give(packet(UcSendLast, 1), &[1; 1]);
    assert_eq!(end.received(), []);
    assert_eq!(end.qp.counters().no_receive, 1);
    assert_eq!(end.qp.counters().incomplete_messages, 0);
    end.give(packet(UcSendOnly, 2), &[2; 1]);
    assert_eq!(end.received(), [(1, Success)]);
}

/// 9.9.3, classes D and E.
#[test]
fn a_receive_that_is_too_small_waits_or_ends_if_it_was_shared() {
    for shared in [false, true] {
        let mut end = End::new();
        end.host.shared = shared;
        end.receive(1, MTU);
        end.give(packet(UcSendFirst, 0), &[1; MTU]);
        end.give(packet(UcSendLast, 1), &[1; 1]);
        let expected = if shared { vec![(1, LocLenErr)] } else { vec![] };
        assert_eq!(end.received(), expected);
        assert_eq!(end.qp.counters().receive_too_small, 1);
        assert_eq!(end.qp.state(), QpState::Rts);
        end.receive(2, MTU);
        end.give(packet(UcSendOnly, 2), &[1; 8]);
        let next = if shared { 2 } else { 1 };
        assert_eq!(end.received(), [(next, Success)]);
    }
}

#[test]
fn a_write_without_the_right_to_memory_is_dropped_in_silence() {
    let region = crate::testing::REGION;
    let cases = [
        (NO_KEY, 0, Access::REMOTE_WRITE),
        (READ_ONLY, 0, Access::REMOTE_WRITE),
        (REMOTE, region - 1, Access::REMOTE_WRITE),
        (REMOTE, 0, Access::empty()),
    ];
    for (key, at, access) in cases {
        let mut end = End::with(QpAttr {
            access,
            ..attributes()
        });
        end.receive(1, 8);
        end.give(rdma(UcWriteOnlyImm, 0, key, at, 2), &[0xee; 2]);
        assert_eq!(end.qp.counters().access_violations, 1);
        assert_eq!(end.host.receives.len(), 1);
        assert_eq!(end.received(), []);
        assert_eq!(end.host.events, []);
        assert_eq!(end.qp.state(), QpState::Rts);
        assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
        end.give(packet(UcSendOnly, 1), &[1]);
        assert_eq!(end.received(), [(1, Success)], "the receive was left");
    }
}

#[test]
fn a_write_of_another_length_than_announced_is_dropped() {
    for (announced, payload) in [(3, 2), (1, 2)] {
        let mut end = End::new();
        let header = rdma(UcWriteOnly, 0, REMOTE, 0, announced);
        end.give(header, &[0xee; 2][..payload]);
        assert_eq!(end.qp.counters().malformed, 1);
        assert_eq!(end.host.bytes(REMOTE, 0, 1), [pattern(REMOTE, 0)]);
    }
    let mut end = End::new();
    end.receive(1, 4 * MTU);
    end.give(packet(UcSendFirst, 0), &[1; MTU - 1]);
    end.give(packet(UcSendLast, 1), &[1; 1]);
    assert_eq!(end.qp.counters().malformed, 1);
    assert_eq!(end.received(), []);
}

/// 9.9.3, class A.
#[test]
fn a_receive_in_memory_that_is_gone_ends_the_queue_pair() {
    let mut end = End::new();
    end.receive(1, 8);
    end.receive(2, 8);
    end.host.deregister(LOCAL);
    end.give(packet(UcSendOnly, 0), &[1; 4]);
    assert_eq!(end.received(), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
    end.receive(3, 8);
    assert_eq!(end.received(), [(3, WrFlushErr)]);
}

#[test]
fn the_error_state_flushes_in_order_with_the_receive_that_was_kept() {
    let mut end = End::new();
    end.receive(1, MTU);
    end.receive(2, MTU);
    end.give(packet(UcSendFirst, 0), &[1; MTU]);
    end.post(7, SendOp::Send, 2 * MTU);
    assert_eq!(end.poll_room(1).0.len(), 1);
    end.to(QpState::Err);
    assert_eq!(end.done(), [(7, WrFlushErr)]);
    assert_eq!(end.received(), [(1, WrFlushErr), (2, WrFlushErr)]);
    end.to(QpState::Reset);
    assert_eq!(end.qp.attributes(), QpAttr::default());
    assert_eq!(end.received(), []);
}

#[test]
fn a_failure_of_the_device_flushes_and_is_announced() {
    let mut end = End::new();
    end.post(1, SendOp::Send, 1);
    end.qp.fail(end.now, &mut end.host);
    assert_eq!(end.done(), [(1, WrFlushErr)]);
    assert_eq!(end.host.events, [QpEvent::Fatal]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn what_is_not_of_the_peer_or_the_service_is_dropped_and_counted() {
    let mut end = End::new();
    end.receive(1, 8);
    let header = packet(UcSendOnly, 0);
    let foreign = Packet {
        header,
        payload: &[],
    };
    let stranger = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 10));
    end.qp
        .handle_packet(end.now, stranger, &foreign, &mut end.host);
    assert_eq!(end.qp.counters().foreign, 1);
    let mut partition = header;
    partition.bth.pkey = PKey(0x8001);
    end.give(partition, &[]);
    assert_eq!(end.qp.counters().bad_pkey, 1);
    end.give(packet(RcSendOnly, 0), &[]);
    assert_eq!(end.qp.counters().malformed, 1);
    assert_eq!(end.qp.counters().received_packets, 0);
    assert_eq!(end.received(), []);
    assert_eq!(end.qp.attributes().rq_psn, Psn::new(PEER_PSN));
}

#[test]
fn the_first_packet_in_rtr_is_announced_once() {
    let mut end = End::reset();
    end.go(QpState::Init, INIT, &attributes());
    end.receive(1, 8);
    end.receive(2, 8);
    end.give(packet(UcSendOnly, 0), &[]);
    assert_eq!(end.qp.counters().dropped_in_state, 1);
    end.go(QpState::Rtr, RTR, &attributes());
    end.give(packet(UcSendOnly, 0), &[]);
    end.give(packet(UcSendOnly, 1), &[]);
    assert_eq!(end.received(), [(1, Success), (2, Success)]);
    assert_eq!(end.host.events, [QpEvent::CommunicationEstablished]);
    let posted = end.try_post(1, SendOp::Send, &[]);
    assert_eq!(posted, Err(PostError::State));
}

/// Two ends, and a link that loses packets and swaps neighbours.
#[test]
fn over_a_bad_link_whole_messages_arrive_in_order_or_not_at_all() {
    const MESSAGES: u64 = 400;
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut a = End::new();
        let mut b = End::with(QpAttr {
            rq_psn: Psn::new(OWN_PSN),
            ..attributes()
        });
        let (mut whole, mut arrived) = (Vec::new(), Vec::new());
        for number in 0..MESSAGES {
            if b.host.receives.is_empty() {
                b.receive(number, 5 * MTU);
            }
            let len = rng.random_range(1..5 * MTU);
            let start = rng.random_range(0..1000);
            let op = SendOp::SendImm(number as u32);
            a.try_post(number, op, &[sge(LOCAL, start, len)]).unwrap();
            let mut packets = a.poll();
            assert_eq!(a.done(), [(number, Success)]);
            let sent = packets.clone();
            if rng.random_bool(0.1) && packets.len() > 1 {
                let at = rng.random_range(1..packets.len());
                packets.swap(at - 1, at);
            }
            packets.retain(|_| !rng.random_bool(0.1));
            if packets == sent {
                whole.push(number);
            }
            for packet in &packets {
                b.give(packet.header, &packet.payload);
            }
            for (completion, _) in std::mem::take(&mut b.host.receptions) {
                assert_eq!(completion.status, Success);
                assert_eq!(completion.byte_len as usize, len);
                assert_eq!(completion.extra, Extra::Imm(number as u32));
                let expected: Vec<_> = (start..start + len).map(|i| pattern(LOCAL, i)).collect();
                assert_eq!(b.host.bytes(LOCAL, 0, len), expected);
                arrived.push(number);
            }
        }
        assert_eq!(arrived, whole);
        assert!(whole.len() > 100 && whole.len() < MESSAGES as usize);
    }
}

/// A packet that is well-formed and often nearly right.
fn any_packet(rng: &mut StdRng, expected: Psn) -> (Header, usize) {
    let opcodes: Vec<Opcode> = Opcode::all()
        .filter(|opcode| opcode.info().transport == Transport::Uc)
        .collect();
    let opcode = opcodes[rng.random_range(0..opcodes.len())];
    let psn = match rng.random_range(0..10) {
        0 => Psn::new(rng.random()),
        1 => expected + 1,
        _ => expected,
    };
    let mut header = Header::new(opcode, Qpn::new(0x11), psn);
    let has = opcode.info().headers;
    if has.contains(Headers::RETH) {
        let key = [REMOTE, REMOTE, LOCAL, NO_KEY][rng.random_range(0..4)];
        let offset = [0, 8, 1, u64::MAX][rng.random_range(0..4)];
        header = header.with_reth(Reth {
            addr: base(key).wrapping_add(offset),
            rkey: RKey(key),
            length: [0, 1, 256, 257, 512, 1 << 31, u32::MAX][rng.random_range(0..7)],
        });
    }
    if has.contains(Headers::IMMDT) {
        header = header.with_imm(rng.random());
    }
    let len = match opcode.info().payload {
        crate::wire::PayloadRule::FullMtu if rng.random_bool(0.9) => MTU,
        _ => [0, 1, 255, 256, 257][rng.random_range(0..5)],
    };
    (header, len)
}

#[test]
fn whatever_the_peer_sends_receives_complete_once_and_in_order() {
    let mut successes = 0;
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut end = End::new();
        let (mut posted, mut completed) = (0, 0);
        for _ in 0..200 {
            if rng.random_bool(0.1) {
                let sges = [sge(LOCAL, 0, rng.random_range(300..600))];
                posted += u64::from(end.host.receives.post(posted, &sges).is_ok());
            }
            let (header, len) = any_packet(&mut rng, end.qp.attributes().rq_psn);
            end.give(header, &[0x33; 257][..len]);
            for (wr_id, status) in end.received() {
                assert_eq!((wr_id, status), (completed, Success));
                completed += 1;
            }
            assert_eq!(end.poll(), []);
        }
        successes += completed;
        end.to(QpState::Err);
        for (wr_id, status) in end.received() {
            assert_eq!((wr_id, status), (completed, WrFlushErr));
            completed += 1;
        }
        assert_eq!(completed, posted, "all is flushed");
    }
    assert!(successes > 100, "{successes}");
}

#[test]
fn local_operations_are_carried_out_in_order_and_without_a_packet() {
    let mut end = End::new();
    end.post(1, SendOp::Send, 1);
    end.try_post(2, SendOp::LocalInv(RKey(7)), &[]).unwrap();
    end.post(3, SendOp::Send, 1);
    end.try_post(4, SendOp::LocalInv(RKey(NO_KEY)), &[])
        .unwrap();
    end.post(5, SendOp::Send, 1);
    let psns: Vec<_> = end.poll().iter().map(Sent::psn).collect();
    assert_eq!(psns, [OWN_PSN, 0]);
    assert_eq!(*end.host.local.borrow(), [(7, 1)]);
    let failed = (4, WcStatus::LocQpOpErr);
    let flushed = (5, WrFlushErr);
    assert_eq!(
        end.done(),
        [(1, Success), (2, Success), (3, Success), failed, flushed]
    );
    assert_eq!(end.qp.state(), QpState::Sqe);
}
