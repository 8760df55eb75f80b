//! Tests of the ICRC against independent vectors, and against the definition byte by byte.

use super::polynomial::{ONE, ORDER, X, x_to_the};
use super::*;
use crate::ids::{PKey, Qpn};
use crate::psn::Psn;
use crate::wire::{Credits, Header, Opcode, Packet, Syndrome, UDP_PORT};
use proptest::collection::vec;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const DF: bool = true;

fn v4(src: [u8; 4], dst: [u8; 4], src_port: u16) -> Flow {
    Flow::V4 {
        src: src.into(),
        dst: dst.into(),
        src_port,
        dst_port: UDP_PORT,
    }
}

/// The ICRC by the annex's definition: headers written out, masked, and processed bit by bit.
fn by_definition(flow: &Flow, id: IpId, packet: &[u8]) -> [u8; LEN] {
    let udp_len = (8 + packet.len() + 4) as u16;
    let mut bytes = vec![0xff; 8];
    let ports = match flow {
        Flow::V4 {
            src,
            dst,
            src_port,
            dst_port,
        } => {
            bytes.extend([0x45, 0xff]);
            bytes.extend((20 + udp_len).to_be_bytes());
            bytes.extend(id.id.to_be_bytes());
            bytes.extend([if id.dont_fragment { 0x40 } else { 0 }, 0]);
            bytes.extend([0xff, 17, 0xff, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            [src_port, dst_port]
        }
        Flow::V6 {
            src,
            dst,
            src_port,
            dst_port,
        } => {
            bytes.extend([0x6f, 0xff, 0xff, 0xff]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            [src_port, dst_port]
        }
    };
    bytes.extend(ports.into_iter().flat_map(|port| port.to_be_bytes()));
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    bytes.extend(packet);
    let variant = bytes.len() - packet.len() + 4;
    bytes[variant] = 0xff;

    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    (!crc).to_le_bytes()
}

fn seal(flow: &Flow, id: IpId, packet: &[u8]) -> Vec<u8> {
    let icrc = FlowIcrc::new(flow).compute(id, packet);
    [packet, &icrc].concat()
}

#[test]
fn icrc_of_uc_send_only_matches_scapy() {
    let flow = v4([192, 168, 0, 7], [192, 168, 0, 7], 49152);
    let payload = [
        0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe,
        0x88, 0x5e, 0x50,
    ];
    let header = Header::new(Opcode::UcSendOnly, Qpn::new(211), Psn::new(13_571_856))
        .with_payload_len(payload.len());
    assert_eq!((header.bth.pad, header.bth.pkey), (2, PKey(0xffff)));
    let packet = Packet {
        header,
        payload: &payload,
    };
    let mut bytes = vec![0xaa; packet.len()];
    packet.emit(&mut bytes);
    assert_eq!(compute(&flow, 1144, DF, &bytes), [0x78, 0xf3, 0x53, 0xf3]);
}

/// A CNP sent by a ConnectX-4 Lx: the whole Ethernet frame, from scapy's test/contrib/roce.uts.
const CNP_FRAME: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a00\
    1201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";

fn cnp_datagram() -> (Flow, Vec<u8>) {
    let frame: Vec<u8> = (0..CNP_FRAME.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&CNP_FRAME[i..i + 2], 16).unwrap())
        .collect();
    assert_eq!(frame.len(), 74);
    let src_port = u16::from_be_bytes([frame[34], frame[35]]);
    let flow = v4(
        frame[26..30].try_into().unwrap(),
        frame[30..34].try_into().unwrap(),
        src_port,
    );
    (flow, frame[42..].to_vec())
}

#[test]
fn cnp_of_a_connectx_4_verifies_and_its_id_is_recovered() {
    let (flow, datagram) = cnp_datagram();
    let truth = IpId {
        id: 0x718c,
        dont_fragment: DF,
    };
    for guess in [
        truth,
        IpId::default(),
        IpId {
            id: 0xffff,
            dont_fragment: false,
        },
        IpId {
            id: 0x718b,
            dont_fragment: DF,
        },
    ] {
        assert_eq!(verify(&flow, &datagram, guess), Ok(truth));
    }
    let packet = Packet::parse(&datagram[..datagram.len() - LEN]).unwrap();
    assert_eq!(packet.header.bth.opcode, Opcode::Cnp);
    assert!(packet.payload.is_empty());
}

/// Datagrams with their ICRC made by scapy 2.8 (`scapy.contrib.roce`), an independent
/// implementation.
#[test]
fn datagrams_match_those_of_scapy_byte_by_byte() {
    // IPv6(tc=0x5a, fl=0x12345, hlim=7)/UDP(sport=50001)/BTH(opcode='RC_SEND_ONLY', migreq=1,
    // padcount=1, dqpn=0x123456, psn=0xabcdef, ackreq=1)/Raw(b'urxe 7!\0')
    let flow = Flow::V6 {
        src: "2001:db8::1".parse().unwrap(),
        dst: "2001:db8::2".parse().unwrap(),
        src_port: 50001,
        dst_port: UDP_PORT,
    };
    let header = Header::new(Opcode::RcSendOnly, Qpn::new(0x12_3456), Psn::new(0xab_cdef))
        .with_ack_req(true)
        .with_payload_len(7);
    let mut packet = [0; 20];
    Packet {
        header,
        payload: b"urxe 7!",
    }
    .emit(&mut packet);
    let scapy = [
        0x04, 0x50, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef, 0x75, 0x72, 0x78,
        0x65, 0x20, 0x37, 0x21, 0x00, 0x34, 0x2c, 0x2a, 0x74,
    ];
    assert_eq!(seal(&flow, IpId::default(), &packet), scapy);
    assert_eq!(verify(&flow, &scapy, IpId::default()), Ok(IpId::default()));

    // IP(id=0xbeef, flags=0, ttl=3, tos=0x1a)/UDP(sport=65535)/BTH(opcode='RC_ACKNOWLEDGE',
    // dqpn=0xfffffe, psn=0xffffff)/AETH(syndrome=0x1f, msn=0x10203)
    let flow = v4([192, 0, 2, 1], [198, 51, 100, 7], 65535);
    let id = IpId {
        id: 0xbeef,
        dont_fragment: false,
    };
    let mut header = Header::ack(
        Opcode::RcAck,
        Qpn::new(0xff_fffe),
        Psn::new(0xff_ffff),
        Syndrome::Ack(Credits::INVALID),
        0x1_0203,
    );
    header.bth.mig_req = false;
    let mut packet = [0; 16];
    header.emit(&mut packet);
    let scapy = [
        0x11, 0x00, 0xff, 0xff, 0x00, 0xff, 0xff, 0xfe, 0x00, 0xff, 0xff, 0xff, 0x1f, 0x01, 0x02,
        0x03, 0x23, 0xc8, 0xd3, 0xe4,
    ];
    assert_eq!(seal(&flow, id, &packet), scapy);
    let guess = IpId {
        id: 7,
        dont_fragment: DF,
    };
    assert_eq!(verify(&flow, &scapy, guess), Ok(id));
}

#[test]
fn cnp_matches_that_of_a_connectx_4_apart_from_migreq() {
    let (flow, datagram) = cnp_datagram();
    let mut header = Header::cnp(Qpn::new(0x118));
    header.bth.mig_req = false;
    let mut bytes = [0xaa; 28];
    assert_eq!(header.emit(&mut bytes), 28);
    assert_eq!(bytes, datagram[..28]);
    assert_eq!(compute(&flow, 0x718c, DF, &bytes), datagram[28..]);
}

#[test]
fn x_has_the_order_of_a_primitive_polynomial() {
    assert_eq!(x_to_the(ORDER), ONE);
    for prime in [3, 5, 17, 257, 65537] {
        assert_ne!(x_to_the(ORDER / prime), ONE);
    }
    assert_eq!(multiply(x_to_the(ORDER - 1), X), ONE);
}

/// The longest packet of RoCE: payload 4096, with XRCETH and AtomicETH as the longest headers.
const LONGEST_PACKET: usize = Bth::LEN + 32 + 4096;

#[test]
fn single_bit_errors_that_pass_as_another_id_are_known() {
    // A single-bit error, multiplied back to the position of the identification, is a power of x.
    // It passes only if that equals a difference of identifications.
    let x_inverse = x_to_the(ORDER - 1);
    let mut error = ONE;
    let mut pass_with_another_df = Vec::new();
    // The word that holds the identification ends at x^0. After it come the rest of the IPv4 and
    // UDP headers, the packet and its ICRC.
    for bit in 0..8 * (12 + 8 + LONGEST_PACKET + LEN) {
        error = multiply(error, x_inverse);
        let [.., flags, offset] = error.to_le_bytes();
        if offset != 0 || flags & !DONT_FRAGMENT != 0 {
            continue;
        }
        assert_ne!(flags, 0, "{bit} bits after the identification");
        pass_with_another_df.push(bit / 8 - 20);
    }
    assert_eq!(pass_with_another_df, [173, 1834]);
}

#[test]
fn only_the_variant_byte_of_the_bth_is_excluded() {
    let (flow, mut datagram) = cnp_datagram();
    let truth = IpId {
        id: 0x718c,
        dont_fragment: DF,
    };
    datagram[Bth::VARIANT_BYTE] ^= 0x80;
    assert_eq!(verify(&flow, &datagram, truth), Ok(truth));
    for adjacent in [Bth::VARIANT_BYTE - 1, Bth::VARIANT_BYTE + 1] {
        let mut datagram = datagram.clone();
        datagram[adjacent] ^= 0x80;
        assert!(verify(&flow, &datagram, truth).is_err());
    }
}

#[test]
fn invalid_packet_lengths_are_refused() {
    let (flow, datagram) = cnp_datagram();
    for len in [0, 1, 4, 12, 15, 17, 30] {
        let short = &datagram[..len.min(datagram.len())];
        assert_eq!(
            verify(&flow, short, IpId::default()),
            Err(IcrcError::Length(short.len()))
        );
    }
    let long = vec![0; 65_536];
    for len in [65_508, 65_536] {
        assert_eq!(
            verify(&flow, &long[..len], IpId::default()),
            Err(IcrcError::Length(len))
        );
    }
    assert!(matches!(
        verify(&flow, &long[..65_504], IpId::default()),
        Err(IcrcError::Mismatch { .. })
    ));
}

#[test]
fn random_damage_passes_for_an_unknown_id_with_probability_2_to_the_minus_15() {
    let mut rng = StdRng::seed_from_u64(17);
    let (flow, mut datagram) = cnp_datagram();
    let flow = FlowIcrc::new(&flow);
    let tries = 1 << 20;
    let mut passed = 0;
    for _ in 0..tries {
        datagram[28..].copy_from_slice(&rng.random::<[u8; 4]>());
        passed += u32::from(flow.verify(&datagram, IpId::default()).is_ok());
    }
    // Expected: 32, with a standard deviation below 6.
    assert!((8..=64).contains(&passed), "{passed} of {tries}");
}

#[test]
fn mapped_addresses_are_ipv4_and_mixed_families_have_no_flow() {
    let v4: SocketAddr = "192.0.2.1:49152".parse().unwrap();
    let mapped: SocketAddr = "[::ffff:192.0.2.1]:49152".parse().unwrap();
    let v6: SocketAddr = "[2001:db8::1]:4791".parse().unwrap();
    assert_eq!(Flow::new(v4, v4), Flow::new(mapped, v4));
    assert!(matches!(Flow::new(mapped, mapped), Some(Flow::V4 { .. })));
    assert!(matches!(Flow::new(v6, v6), Some(Flow::V6 { .. })));
    assert_eq!(Flow::new(v4, v6), None);
}

fn any_flow() -> impl Strategy<Value = Flow> {
    prop_oneof![
        any::<([u8; 4], [u8; 4], u16, u16)>().prop_map(|(src, dst, src_port, dst_port)| Flow::V4 {
            src: src.into(),
            dst: dst.into(),
            src_port,
            dst_port
        }),
        any::<([u8; 16], [u8; 16], u16, u16)>().prop_map(|(src, dst, src_port, dst_port)| {
            Flow::V6 {
                src: src.into(),
                dst: dst.into(),
                src_port,
                dst_port,
            }
        }),
    ]
}

fn any_id() -> impl Strategy<Value = IpId> {
    any::<(u16, bool)>().prop_map(|(id, dont_fragment)| IpId { id, dont_fragment })
}

/// Random bytes of the length of a packet; the ICRC does not depend on their meaning.
fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![
        20 => 3usize..40,
        20 => 3..=LONGEST_PACKET / 4,
        1 => Just(MAX_DATAGRAM / 4 - 1),
    ];
    (words, any::<u64>()).prop_map(|(words, seed)| random_bytes(4 * words, seed))
}

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

#[test]
fn packets_of_every_short_length_match_the_definition() {
    let flow = v4([192, 0, 2, 1], [192, 0, 2, 2], 49152);
    let id = IpId {
        id: 7,
        dont_fragment: true,
    };
    for words in 3..24 {
        let packet = random_bytes(4 * words, words as u64);
        assert_eq!(
            FlowIcrc::new(&flow).compute(id, &packet),
            by_definition(&flow, id, &packet),
            "{words} words"
        );
    }
}

proptest! {
    #[test]
    fn tables_match_the_definition(
        flow in any_flow(), id in any_id(), packet in any_packet(),
    ) {
        prop_assert_eq!(
            compute(&flow, id.id, id.dont_fragment, &packet),
            by_definition(&flow, id, &packet)
        );
    }

    #[test]
    fn any_id_is_recovered_from_any_guess(
        flow in any_flow(), id in any_id(), guess in any_id(), packet in any_packet(),
    ) {
        let datagram = seal(&flow, id, &packet);
        let expected = match flow {
            Flow::V4 { .. } => id,
            Flow::V6 { .. } => guess,
        };
        prop_assert_eq!(verify(&flow, &datagram, guess), Ok(expected));
        let known = FlowIcrc::new(&flow).verify_known_sender(&datagram, guess);
        if expected.dont_fragment == guess.dont_fragment {
            prop_assert_eq!(known, Ok(expected));
        } else {
            prop_assert!(known.is_err());
        }
    }

    #[test]
    fn any_single_bit_error_from_a_known_sender_is_detected_whatever_the_guess(
        flow in any_flow(), id in any_id(), guessed_id: u16,
        words in 3usize..=LONGEST_PACKET / 4, seed: u64,
        at in any::<prop::sample::Index>(), bit in 0u32..8,
    ) {
        let mut datagram = seal(&flow, id, &random_bytes(4 * words, seed));
        let at = at.index(datagram.len());
        datagram[at] ^= 1 << bit;
        let guess = IpId { id: guessed_id, ..id };
        let ok = FlowIcrc::new(&flow).verify_known_sender(&datagram, guess).is_ok();
        prop_assert_eq!(ok, at == Bth::VARIANT_BYTE);
    }

    #[test]
    fn verify_never_panics(
        flow in any_flow(), guess in any_id(), bytes in vec(any::<u8>(), 0..200),
    ) {
        let _ = verify(&flow, &bytes, guess);
    }

    #[test]
    fn different_flows_have_different_icrcs(id in any_id(), packet in any_packet(), src: [u8; 4]) {
        let flow = v4([192, 0, 2, 1], [192, 0, 2, 2], 49152);
        let other = v4(src, [192, 0, 2, 2], 49152);
        prop_assume!(flow != other);
        prop_assert_ne!(
            compute(&flow, id.id, id.dont_fragment, &packet),
            compute(&other, id.id, id.dont_fragment, &packet)
        );
    }
}
