//! Congestion notification (A17.9.3): detection of marks, sending of CNPs, and the reaction.

use super::*;
use crate::icrc::{Flow, FlowIcrc, IpId};
use Opcode::*;
use std::net::Ipv4Addr;

/// Delivers an ECN-marked packet without data.
fn deliver_marked(end: &mut Endpoint, header: Header) {
    end.deliver(header, &[]);
    let packet = Packet {
        header,
        payload: &[],
    };
    end.qp.handle_ecn_mark(end.now, &packet);
}

fn mark(end: &mut Endpoint) {
    deliver_marked(end, rdma(RcWriteOnly, 0, REMOTE, 0, 0));
}

#[test]
fn ecn_marked_packet_causes_a_cnp() {
    let mut end = Endpoint::new();
    mark(&mut end);
    let packets = end.poll();
    assert_eq!(packets[0].header, Header::cnp(Qpn::new(0x22)));
    assert_eq!(packets[1].opcode(), RcAck);
    let counters = end.qp.counters();
    assert_eq!((counters.ecn_marked, counters.cnps_sent), (1, 1));
}

#[test]
fn at_most_one_cnp_is_sent_per_interval() {
    let mut end = Endpoint::new();
    for _ in 0..40 {
        mark(&mut end);
        end.advance(Duration::from_micros(5));
        end.poll();
    }
    let counters = end.qp.counters();
    assert_eq!((counters.ecn_marked, counters.cnps_sent), (40, 4));
}

#[test]
fn cnp_shrinks_the_window_and_changes_nothing_else() {
    let mut end = Endpoint::new();
    end.post_signaled(1, write_to(0), 200 * MTU);
    assert_eq!(end.poll().len(), 16);
    let attributes = end.qp.attributes();
    end.deliver(Header::cnp(Qpn::new(0x11)), &[]);
    assert_eq!(end.qp.attributes(), attributes);
    assert_eq!(end.qp.counters().cnps_received, 1);
    assert_eq!(end.qp.counters().malformed, 0);
    end.deliver(ack(15), &[]);
    assert_eq!(end.poll().len(), 8);
}

#[test]
fn cnp_does_not_affect_path_migration() {
    // MigReq of a CNP is 0; in other packets that would indicate migration to an alternate path.
    let mut end = Endpoint::new();
    let attr = QpAttr {
        path_mig_state: crate::qp::PathMigState::Rearm,
        alt_av: attributes().av,
        alt_port: 1,
        ..attributes()
    };
    let mask = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
    end.qp.modify(&attr, mask, end.now, &mut end.host).unwrap();
    end.deliver(Header::cnp(Qpn::new(0x11)), &[]);
    let state = end.qp.attributes().path_mig_state;
    assert_eq!(state, crate::qp::PathMigState::Rearm);
}

#[test]
fn ecn_marked_cnp_causes_no_cnp() {
    let mut end = Endpoint::new();
    deliver_marked(&mut end, Header::cnp(Qpn::new(0x11)));
    assert!(end.poll().is_empty());
    assert_eq!(end.qp.counters().cnps_sent, 0);
}

#[test]
fn cnp_from_another_address_is_ignored() {
    let mut end = Endpoint::new();
    let header = Header::cnp(Qpn::new(0x11));
    let packet = Packet {
        header,
        payload: &[],
    };
    let stranger = Gid::from(Ipv4Addr::new(192, 0, 2, 77));
    end.qp
        .handle_packet(end.now, source(stranger), &packet, &mut end.host);
    assert_eq!(end.qp.counters().cnps_received, 0);
    assert_eq!(end.qp.counters().wrong_source, 1);
}

/// The CNP is identical, from BTH to ICRC, to one recorded from a ConnectX-4 Lx.
#[test]
fn cnp_matches_that_of_a_nic() {
    let mut end = Endpoint::with(|attr| attr.dest_qpn = Qpn::new(0x118));
    mark(&mut end);
    let cnp = &end.poll()[0];
    let mut bytes = vec![0; cnp.header.len()];
    cnp.header.emit(&mut bytes);
    let flow = Flow::V4 {
        src: Ipv4Addr::new(10, 0, 17, 1),
        dst: Ipv4Addr::new(10, 0, 18, 1),
        src_port: 0,
        dst_port: crate::wire::UDP_PORT,
    };
    let id = IpId {
        id: 0x718c,
        dont_fragment: true,
    };
    let icrc = FlowIcrc::new(&flow).compute(id, &bytes);
    bytes.extend_from_slice(&icrc);
    let captured = [
        0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0, 0, 0, 0, // BTH
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // reserved
        0x82, 0xfd, 0x00, 0x2a, // ICRC
    ];
    assert_eq!(bytes, captured);
}
