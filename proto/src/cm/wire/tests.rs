//! Tests of the message layouts.

use super::mad::{Attribute, LEN, Mad, MadError, MadHeader};
use super::*;
use crate::ids::{Gid, PKey, QKey, Qpn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Returns a CM MAD with this body.
fn mad(attribute: Attribute, body: &[u8]) -> Mad {
    let mut mad = [0; LEN];
    let header = MadHeader {
        attribute,
        transaction: 0x0102_0304_0506_0708,
        modifier: 0x090a_0b0c,
    };
    header.emit(&mut mad);
    mad[MadHeader::LEN..].copy_from_slice(body);
    mad
}

proptest! {
    /// Everything except reserved bits, which are sent as zero, survives a round trip.
    #[test]
    fn messages_round_trip(
        body in prop::collection::vec(any::<u8>(), LEN - MadHeader::LEN),
        attribute in prop::sample::select(&Attribute::ALL[..]),
    ) {
        let (transaction, message) = Message::parse(&mad(attribute, &body)).unwrap();
        prop_assert_eq!(message.attribute(), attribute);
        let again = message.to_mad(transaction);
        prop_assert_eq!(Message::parse(&again), Ok((transaction, message)));
        prop_assert_eq!(Message::parse(&again).unwrap().1.to_mad(transaction), again);
    }

    #[test]
    fn parse_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Message::parse(&bytes);
        let _ = IpHeader::parse(&bytes);
    }

    #[test]
    fn ip_header_round_trips(v6: bool, port: u16, a: [u8; 16], b: [u8; 16]) {
        let address = |bytes: [u8; 16]| -> IpAddr {
            if v6 {
                Ipv6Addr::from(bytes).into()
            } else {
                IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
        };
        let header = IpHeader {
            source: SocketAddr::new(address(a), port),
            destination: address(b),
        };
        let bytes = header.to_bytes();
        prop_assert_eq!(IpHeader::parse(&bytes), Ok((header, &[][..])));
    }
}

#[test]
fn mads_of_other_length_version_class_method_or_attribute_are_refused() {
    let good = mad(Attribute::Rtu, &[0; 232]);
    let with = |at: usize, byte: u8| {
        let mut mad = good;
        mad[at] = byte;
        Message::parse(&mad).unwrap_err()
    };
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 3), MadError::Class(3));
    assert_eq!(with(2, 1), MadError::ClassVersion(1));
    assert_eq!(with(3, 1), MadError::Method(1));
    assert_eq!(with(17, 0x0f), MadError::Attribute(0x0f));
    assert_eq!(with(17, 0x1b), MadError::Attribute(0x1b));
    assert_eq!(
        Message::parse(&good[..255]).unwrap_err(),
        MadError::Length(255)
    );
}

#[test]
fn mad_header_matches_the_specification() {
    let mad = mad(Attribute::SidrReq, &[0; 232]);
    let expected = [
        1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x17, 0, 0, 9, 10, 11, 12,
    ];
    assert_eq!(mad[..24], expected);
}

#[test]
fn req_fields_match_table_106() {
    let req = Req {
        local_comm_id: 0x1122_3344,
        service: ServiceId::of_port(PortSpace::Tcp, 7471),
        ca_guid: 0x0102_0304_0506_0708,
        qkey: QKey(0xa0a1_a2a3),
        qpn: Qpn::new(0x12_3456),
        responder_resources: 0xb0,
        initiator_depth: 0xb1,
        remote_response_timeout: 20,
        transport: Transport::Xrc,
        flow_control: true,
        ece: Ece {
            vendor_id: 0x0002_c9ed,
            options: 0x0a0b_0c0d,
        },
        starting_psn: Psn::new(0x65_4321),
        local_response_timeout: 21,
        retry_count: 7,
        pkey: PKey::DEFAULT,
        path_mtu: Mtu::B1024 as u8,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        primary: Path {
            local_lid: 0xfffe,
            remote_lid: 0xffff,
            local_gid: Gid([1; 16]),
            remote_gid: Gid([2; 16]),
            flow_label: 0x1_2345,
            packet_rate: 0x2a,
            traffic_class: 0xc1,
            hop_limit: 64,
            sl: 5,
            subnet_local: true,
            local_ack_timeout: 17,
        },
        alternate: Path::default(),
        private_data: PrivateData::new(b"hello").unwrap(),
    };
    let mad = Message::Req(req).to_mad(9);
    let body = &mad[24..];
    assert_eq!(body[..4], [0x11, 0x22, 0x33, 0x44]);
    assert_eq!(
        (&mad[20..24], &body[4..8]),
        (&[10, 11, 12, 13][..], &[0, 0x02, 0xc9, 0xed][..])
    );
    assert_eq!(body[8..16], [0, 0, 0, 0, 0x01, 0x06, 0x1d, 0x2f]);
    assert_eq!(body[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        body[28..36],
        [0xa0, 0xa1, 0xa2, 0xa3, 0x12, 0x34, 0x56, 0xb0]
    );
    assert_eq!(body[36..44], [0, 0, 0, 0xb1, 0, 0, 0, 20 << 3 | 3 << 1 | 1]);
    assert_eq!(body[44..48], [0x65, 0x43, 0x21, 21 << 3 | 7]);
    assert_eq!(body[48..52], [0xff, 0xff, 3 << 4 | 6, 15 << 4 | 8 | 1]);
    assert_eq!(body[52..56], [0xff, 0xfe, 0xff, 0xff]);
    assert_eq!((body[56], body[72]), (1, 2));
    assert_eq!(
        body[88..96],
        [0x12, 0x34, 0x50, 0x2a, 0xc1, 64, 5 << 4 | 8, 17 << 3]
    );
    assert_eq!(body[96..140], [0; 44]);
    assert_eq!(body[140..146], *b"hello\0");
    assert_eq!(Message::parse(&mad), Ok((9, Message::Req(req))));
}

#[test]
fn rep_fields_match_table_110() {
    let rep = Rep {
        local_comm_id: 1,
        remote_comm_id: 2,
        qkey: QKey(3),
        qpn: Qpn::new(0x12_3456),
        eecn: 0x65_4321,
        ece: Ece {
            vendor_id: 0x0002_c9ed,
            options: 0x0a0b_0c0d,
        },
        starting_psn: Psn::new(0xab_cdef),
        responder_resources: 4,
        initiator_depth: 5,
        target_ack_delay: 15,
        failover_accepted: 1,
        flow_control: true,
        rnr_retry_count: 7,
        srq: true,
        ca_guid: 0x0102_0304_0506_0708,
        private_data: PrivateData::new(&[0xee]).unwrap(),
    };
    let mad = Message::Rep(rep).to_mad(9);
    let expected = [
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        2,
        0,
        0,
        0,
        3,
        0x12,
        0x34,
        0x56,
        0x02,
        0x65,
        0x43,
        0x21,
        0xc9,
        0xab,
        0xcd,
        0xef,
        0xed,
        4,
        5,
        15 << 3 | 1 << 1 | 1,
        7 << 5 | 0x10,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        0xee,
    ];
    assert_eq!(mad[24..24 + 37], expected);
    assert_eq!(mad[20..24], [10, 11, 12, 13]);
    assert_eq!(Message::parse(&mad), Ok((9, Message::Rep(rep))));
}

#[test]
fn lap_fields_match_table_115() {
    let lap = Lap {
        local_comm_id: 1,
        remote_comm_id: 2,
        remote_qpn: Qpn::new(0x12_3456),
        remote_response_timeout: 20,
        alternate: Path {
            local_gid: Gid([1; 16]),
            remote_gid: Gid([2; 16]),
            flow_label: 0x1_2345,
            traffic_class: 0xc1,
            hop_limit: 64,
            packet_rate: 0x2a,
            sl: 5,
            subnet_local: true,
            local_ack_timeout: 17,
            ..Path::default()
        },
        private_data: PrivateData::default(),
    };
    let mad = Message::Lap(lap).to_mad(9);
    let body = &mad[24..];
    assert_eq!(body[12..16], [0x12, 0x34, 0x56, 20 << 3]);
    assert_eq!((body[24], body[40]), (1, 2));
    assert_eq!(
        body[56..64],
        [0x12, 0x34, 0x50, 0xc1, 64, 0x2a, 5 << 4 | 8, 17 << 3]
    );
    assert_eq!(Message::parse(&mad), Ok((9, Message::Lap(lap))));
}

#[test]
fn private_data_lengths_match_the_kernel() {
    let lengths = [
        req::PRIVATE_DATA,
        mra::PRIVATE_DATA,
        rej::PRIVATE_DATA,
        rep::PRIVATE_DATA,
        rtu::PRIVATE_DATA,
        disconnect::DREQ_PRIVATE_DATA,
        disconnect::DREP_PRIVATE_DATA,
        sidr::REQ_PRIVATE_DATA,
        sidr::REP_PRIVATE_DATA,
        alternate::LAP_PRIVATE_DATA,
        alternate::APR_PRIVATE_DATA,
    ];
    assert_eq!(
        lengths,
        [92, 222, 148, 196, 224, 220, 224, 216, 136, 168, 148]
    );
    assert_eq!(req::PRIVATE_DATA - IpHeader::LEN, 56);
}

#[test]
fn ipv4_addresses_are_in_the_last_four_of_sixteen_bytes() {
    let header = IpHeader {
        source: "192.0.2.1:4660".parse().unwrap(),
        destination: IpAddr::from([192, 0, 2, 2]),
    };
    let bytes = header.to_bytes();
    assert_eq!(bytes.len(), 36);
    assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
    assert_eq!(bytes[16..20], [192, 0, 2, 1]);
    assert_eq!(bytes[32..], [192, 0, 2, 2]);
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes;
        bytes[at] = byte;
        IpHeader::parse(&bytes).unwrap_err()
    };
    assert_eq!(with(0, 0x10), IpHeaderError::Version(0x10));
    assert_eq!(with(1, 0x50), IpHeaderError::IpVersion(5));
    assert_eq!(
        IpHeader::parse(&bytes[..35]),
        Err(IpHeaderError::TooShort { have: 35 })
    );
}

#[test]
fn service_id_of_a_port_round_trips() {
    let service = ServiceId::of_port(PortSpace::Udp, 7174);
    assert_eq!(service.0, 0x0111_1c06);
    assert_eq!(service.port(), Some((PortSpace::Udp, 7174)));
    assert_eq!(ServiceId(0x1_0106_1234).port().map(|(_, port)| port), None);
    assert_eq!(ServiceId(0x0200_0000_0106_1234).port(), None);
}

#[test]
fn reject_reasons_have_names() {
    assert_eq!(RejectReason::CONSUMER.to_string(), "28 (consumer reject)");
    assert_eq!(RejectReason(999).to_string(), "999 (unknown reason)");
    let numbers: Vec<_> = RejectReason::ALL
        .iter()
        .map(|(reason, _)| reason.0)
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b));
    // 34 is reserved.
    assert_eq!(numbers, [(1..=33).collect(), vec![35]].concat());
}

/// Another host cannot reach a listener of loopback addresses by what it states in its header.
#[test]
fn a_loopback_address_is_requested_by_this_host_alone() {
    let gid = |ip: &str| Gid::from_ip(ip.parse().unwrap());
    let (ours, theirs) = (gid("192.0.2.1"), gid("192.0.2.2"));
    let header = |destination: &str| {
        let header = IpHeader {
            source: "192.0.2.1:7".parse().unwrap(),
            destination: destination.parse().unwrap(),
        };
        header.to_bytes()
    };
    let loopback = header("127.0.0.1");
    assert_eq!(requested_address(ours, ours, &loopback), gid("127.0.0.1"));
    assert_eq!(requested_address(ours, theirs, &loopback), ours);
    assert_eq!(requested_address(ours, ours, &header("192.0.2.2")), ours);
    assert_eq!(requested_address(ours, ours, &loopback[1..]), ours);
}
