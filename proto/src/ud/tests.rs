//! Scenarios for unreliable datagram, named after the rules they check. The test plays the peer.

use super::*;
use crate::host::QpEvent;
use crate::ids::{Gid, QKey, RKey};
use crate::psn::Psn;
use crate::qp::{AttrMask, QpState};
use crate::testing::{LOCAL, NO_KEY, Sent, pattern, sge};
use crate::unreliable;
use crate::wire::{Deth, Header, Opcode};
use crate::work::{
    Destination, IpVersion, Payload, SendFlags, SendOp, Sge, UdDestination, WcStatus,
};
use Opcode::{RcSendOnly, UdSendOnly, UdSendOnlyImm};
use WcStatus::{LocLenErr, LocProtErr, Success, WrFlushErr};
use std::net::Ipv4Addr;

const MTU: usize = 1024;
const QKEY: QKey = QKey(0x1111_1111);
const GRH: usize = 40;

const NETWORK: NetworkHeader = NetworkHeader {
    source: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9]),
    destination: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]),
    traffic_class: 0x20,
    flow_label: 0,
    hop_limit: 61,
};

type Endpoint = unreliable::testing::Endpoint<Ud>;

fn attributes() -> QpAttr {
    QpAttr {
        qkey: QKEY,
        sq_psn: Psn::new(0xff_ffff),
        ..QpAttr::default()
    }
}

const INIT: AttrMask = AttrMask::PKEY_INDEX
    .union(AttrMask::PORT)
    .union(AttrMask::QKEY);

impl Endpoint {
    fn reset() -> Self {
        let send = SendQueueSize {
            max_wr: 16,
            max_sge: 4,
            max_inline: 512,
        };
        Self::of(
            UdQp::new(UdConfig {
                qpn: Qpn::new(0x11),
                send,
                signal_all: false,
                mtu: Mtu::B1024,
            })
            .unwrap(),
        )
    }

    fn new() -> Self {
        let mut end = Self::reset();
        end.modify(QpState::Init, INIT, &attributes());
        end.modify(QpState::Rtr, AttrMask::empty(), &attributes());
        end.modify(QpState::Rts, AttrMask::SQ_PSN, &attributes());
        end
    }

    fn try_post(
        &mut self,
        wr_id: u64,
        op: SendOp,
        dest: Option<UdDestination>,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(sges),
            dest: dest.map(Destination::Datagram),
        };
        self.qp.post_send(&wr, self.now, &mut self.host)
    }

    /// Posts a signaled SEND of `len` bytes to an address handle.
    fn post(&mut self, wr_id: u64, handle: u64, len: usize) {
        let sges = [sge(LOCAL, 0, len)];
        self.try_post(wr_id, SendOp::Send, Some(destination(handle)), &sges)
            .unwrap();
    }

    fn deliver(&mut self, header: Header, payload: &[u8]) {
        let header = header.with_payload_len(payload.len());
        let packet = Packet { header, payload };
        self.qp
            .handle_packet(self.now, &NETWORK, &packet, &mut self.host);
    }
}

fn destination(handle: u64) -> UdDestination {
    UdDestination {
        handle,
        qpn: Qpn::new(0x20 + handle as u32),
        qkey: QKey(0x2222_2222),
    }
}

/// The headers of a datagram to the queue pair.
fn datagram(opcode: Opcode) -> Header {
    Header::new(opcode, Qpn::new(0x11), Psn::new(77)).with_deth(Deth {
        qkey: QKEY,
        src_qp: Qpn::new(0x33),
    })
}

/// 9.8.3.1 and 10.2.5.
#[test]
fn datagram_carries_source_queue_pair_and_queue_key() {
    let mut end = Endpoint::new();
    let sges = [sge(LOCAL, 1, 3), sge(LOCAL, 9, 2)];
    end.try_post(1, SendOp::SendImm(5), Some(destination(1)), &sges)
        .unwrap();
    let own = UdDestination {
        qkey: QKey(0x8000_0000),
        ..destination(1)
    };
    end.try_post(2, SendOp::Send, Some(own), &[]).unwrap();
    let packets = end.poll();
    assert_eq!(packets[0].opcode(), UdSendOnlyImm);
    assert_eq!(packets[1].opcode(), UdSendOnly);
    let psns: Vec<_> = packets.iter().map(Sent::psn).collect();
    assert_eq!(psns, [0xff_ffff, 0]);
    let header = &packets[0].header;
    assert_eq!(header.bth.dest_qp, Qpn::new(0x21));
    assert_eq!(header.imm, Some(5));
    let sender = |packet: &Sent| packet.header.deth.map(|deth| (deth.qkey, deth.src_qp));
    let us = Qpn::new(0x11);
    assert_eq!(sender(&packets[0]), Some((QKey(0x2222_2222), us)));
    assert_eq!(sender(&packets[1]), Some((QKEY, us)));
    let expected = [1, 2, 3, 9, 10].map(|at| pattern(LOCAL, at));
    assert_eq!(packets[0].payload, expected);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert_eq!(end.qp.attributes().sq_psn, Psn::new(1));
}

#[test]
fn poll_transmit_sends_to_one_address_handle() {
    let mut end = Endpoint::new();
    assert_eq!(end.qp.next_destination(), None);
    for (wr_id, handle) in [(1, 7), (2, 7), (3, 8), (4, 7)] {
        end.post(wr_id, handle, 4);
    }
    assert_eq!(end.qp.next_destination(), Some(7));
    let (packets, more) = end.poll_room(1);
    assert_eq!((packets.len(), more), (1, true));
    assert_eq!(end.qp.next_destination(), Some(7));
    let (packets, more) = end.poll_room(usize::MAX);
    assert_eq!((packets.len(), more), (1, true));
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert_eq!(end.qp.next_destination(), Some(8));
    let (packets, more) = end.poll_room(usize::MAX);
    assert_eq!((packets.len(), more), (1, true));
    assert_eq!(packets[0].header.bth.dest_qp, Qpn::new(0x28));
    assert_eq!(end.qp.next_destination(), Some(7));
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.qp.next_destination(), None);
}

/// C10-93.1.1.
#[test]
fn oversized_datagram_completes_without_a_packet_or_an_error() {
    let mut end = Endpoint::new();
    end.post(1, 1, MTU);
    end.post(2, 1, MTU + 1);
    end.post(3, 1, 0);
    let packets = end.poll();
    let lengths: Vec<_> = packets.iter().map(|p| p.payload.len()).collect();
    assert_eq!(lengths, [MTU, 0]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(end.qp.counters().oversized_datagrams, 1);
    assert_eq!(end.qp.counters().sent_packets, 2);
}

#[test]
fn only_sends_with_a_destination_are_supported() {
    let mut end = Endpoint::new();
    let nowhere = end.try_post(1, SendOp::Send, None, &[]);
    assert_eq!(nowhere, Err(PostError::Destination));
    let (addr, rkey) = (0, RKey(1));
    let ops = [
        SendOp::SendInv(rkey),
        SendOp::Write { addr, rkey },
        SendOp::WriteImm { addr, rkey, imm: 0 },
        SendOp::Read { addr, rkey },
    ];
    for op in ops {
        let posted = end.try_post(1, op, Some(destination(1)), &[]);
        assert_eq!(posted, Err(PostError::Operation));
    }
    assert_eq!(end.poll(), []);
}

/// 10.3.1.6.
#[test]
fn local_error_leads_to_sqe_and_rts_is_reachable_from_there() {
    let mut end = Endpoint::new();
    end.try_post(1, SendOp::Send, Some(destination(1)), &[sge(NO_KEY, 0, 4)])
        .unwrap();
    end.post(2, 2, 4);
    assert_eq!(end.poll(), []);
    assert_eq!(end.done(), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Sqe);
    assert_eq!(end.qp.next_destination(), None);
    end.post(3, 1, 4);
    assert_eq!(end.done(), [(3, WrFlushErr)]);
    end.receive(9, 64);
    end.deliver(datagram(UdSendOnly), &[1]);
    assert_eq!(end.received(), [(9, Success)]);
    end.modify(QpState::Rts, AttrMask::empty(), &attributes());
    end.post(4, 1, 4);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(end.done(), [(4, Success)]);
}

#[test]
fn sqd_sends_nothing_and_is_drained_at_once() {
    let mut end = Endpoint::new();
    end.post(1, 1, 4);
    let attr = QpAttr {
        state: QpState::Sqd,
        en_sqd_async_notify: true,
        ..attributes()
    };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    end.qp.modify(&attr, mask, end.now, &mut end.host).unwrap();
    assert_eq!(end.host.events, [QpEvent::SendQueueDrained]);
    assert_eq!(end.qp.next_destination(), None);
    assert_eq!(end.poll(), []);
    end.modify(QpState::Rts, AttrMask::empty(), &attributes());
    assert_eq!(end.poll().len(), 1);
}

/// 11.4.2.1 and A17.4.5.
#[test]
fn received_message_follows_40_bytes_of_network_header() {
    let mut end = Endpoint::new();
    end.receive(1, GRH + MTU);
    let mut header = datagram(UdSendOnlyImm).with_imm(0xabcd_ef01);
    header.bth.solicited = true;
    end.deliver(header, &[7; 5]);
    let (completion, solicited) = end.host.receptions[0];
    assert!(solicited);
    assert_eq!(completion.grh, Some(IpVersion::V4));
    assert_eq!(
        (completion.status, completion.byte_len),
        (Success, GRH as u32 + 5)
    );
    assert_eq!(completion.src_qp, Qpn::new(0x33));
    assert_eq!(completion.qpn, Qpn::new(0x11));
    assert_eq!(completion.extra, Extra::Imm(0xabcd_ef01));
    assert_eq!(end.host.bytes(LOCAL, GRH, 6)[..5], [7; 5]);
    assert_eq!(end.host.bytes(LOCAL, GRH + 5, 1), [pattern(LOCAL, GRH + 5)]);
    let ip = end.host.bytes(LOCAL, 20, 20);
    assert_eq!((ip[0], ip[1], ip[8], ip[9]), (0x45, 0x20, 61, 17));
    // IP, UDP, BTH, DETH, ImmDt, payload with pad, ICRC.
    let total = 20 + 8 + 12 + 8 + 4 + 8 + 4;
    assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), total);
    assert_eq!(ip[12..16], Ipv4Addr::new(192, 0, 2, 9).octets());
    assert_eq!(ip[16..], Ipv4Addr::new(192, 0, 2, 1).octets());
    assert_eq!(end.host.events, []);
}

/// 9.6.1.
#[test]
fn packets_that_fail_a_check_are_dropped_and_counted() {
    let mut end = Endpoint::new();
    end.receive(1, GRH + 2 * MTU);
    let mut key = datagram(UdSendOnly);
    key.deth = Some(Deth {
        qkey: QKey(QKEY.0 ^ 1),
        src_qp: Qpn::new(0x33),
    });
    end.deliver(key, &[]);
    assert_eq!(end.qp.counters().bad_qkey, 1);
    let mut partition = datagram(UdSendOnly);
    partition.bth.pkey = PKey(0x8001);
    end.deliver(partition, &[]);
    assert_eq!(end.qp.counters().bad_pkey, 1);
    end.deliver(datagram(RcSendOnly), &[]);
    end.deliver(datagram(UdSendOnly), &[0; MTU + 1]);
    assert_eq!(end.qp.counters().malformed, 2);
    assert_eq!(end.qp.counters().received_packets, 0);
    assert_eq!(end.received(), []);
    // A multicast packet, with a partition key of limited membership.
    let mut group = datagram(UdSendOnly);
    group.bth.dest_qp = Qpn::MULTICAST;
    group.bth.pkey = PKey(0x7fff);
    end.deliver(group, &[0; MTU]);
    assert_eq!(end.received(), [(1, Success)]);
}

#[test]
fn datagram_without_a_receive_is_dropped() {
    let mut end = Endpoint::new();
    end.deliver(datagram(UdSendOnly), &[1]);
    assert_eq!(end.qp.counters().no_receive, 1);
    end.receive(1, GRH + 1);
    assert_eq!(end.received(), []);
    end.deliver(datagram(UdSendOnly), &[2]);
    assert_eq!(end.received(), [(1, Success)]);
}

/// 9.9.3, classes D and E.
#[test]
fn too_small_receive_is_kept_or_completes_with_an_error_if_shared() {
    for shared in [false, true] {
        let mut end = Endpoint::new();
        end.host.shared = shared;
        end.receive(1, GRH + 3);
        end.receive(2, GRH + 3);
        end.deliver(datagram(UdSendOnly), &[1; 4]);
        let expected = if shared { vec![(1, LocLenErr)] } else { vec![] };
        assert_eq!(end.received(), expected);
        assert_eq!(end.qp.counters().receive_too_small, 1);
        assert_eq!(end.host.bytes(LOCAL, GRH, 1), [pattern(LOCAL, GRH)]);
        assert_eq!(end.qp.state(), QpState::Rts);
        end.deliver(datagram(UdSendOnly), &[1; 3]);
        let next = if shared { 2 } else { 1 };
        assert_eq!(end.received(), [(next, Success)]);
    }
}

/// 9.9.3, class A.
#[test]
fn receive_in_deregistered_memory_moves_the_queue_pair_to_error() {
    let mut end = Endpoint::new();
    end.receive(1, 64);
    end.receive(2, 64);
    end.post(5, 1, 4);
    end.host.deregister(LOCAL);
    end.deliver(datagram(UdSendOnly), &[1]);
    assert_eq!(end.received(), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(end.done(), [(5, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
    end.deliver(datagram(UdSendOnly), &[1]);
    assert_eq!(end.qp.counters().dropped_in_state, 1);
}

#[test]
fn sends_are_accepted_from_rts_and_datagrams_from_rtr() {
    let mut end = Endpoint::reset();
    end.modify(QpState::Init, INIT, &attributes());
    end.receive(1, 64);
    end.deliver(datagram(UdSendOnly), &[1]);
    assert_eq!(end.qp.counters().dropped_in_state, 1);
    end.modify(QpState::Rtr, AttrMask::empty(), &attributes());
    end.deliver(datagram(UdSendOnly), &[1]);
    assert_eq!(end.received(), [(1, Success)]);
    let posted = end.try_post(1, SendOp::Send, Some(destination(1)), &[]);
    assert_eq!(posted, Err(PostError::State));
    end.modify(QpState::Rts, AttrMask::SQ_PSN, &attributes());
    end.post(2, 1, 0);
    assert_eq!(end.poll().len(), 1);
}

#[test]
fn error_flushes_and_reset_discards() {
    let mut end = Endpoint::new();
    end.receive(1, 64);
    end.post(2, 1, 4);
    end.modify(QpState::Err, AttrMask::empty(), &attributes());
    assert_eq!(end.received(), [(1, WrFlushErr)]);
    assert_eq!(end.done(), [(2, WrFlushErr)]);
    end.modify(QpState::Reset, AttrMask::empty(), &attributes());
    assert_eq!(end.qp.attributes().path_mtu, Mtu::B1024, "the port's");
    assert_eq!(end.qp.attributes().qkey, QKey(0));
    end.qp.fail(end.now, &mut end.host);
    assert_eq!(end.qp.state(), QpState::Reset);
    assert_eq!(end.host.events, []);
}
