//! Round trips for every opcode, one violation of every rule, and independent vectors.

use super::*;
use crate::ids::{PKey, QKey};
use proptest::collection::vec;
use proptest::prelude::*;

fn any_opcode() -> impl Strategy<Value = Opcode> {
    prop::sample::select(Opcode::all().collect::<Vec<_>>())
}

prop_compose! {
    fn any_bth()(
        opcode in any_opcode(), flags: [bool; 5], pad in 0u8..4, pkey: u16,
        dest_qp: u32, psn: u32,
    ) -> Bth {
        let [solicited, mig_req, fecn, becn, ack_req] = flags;
        Bth {
            opcode, solicited, mig_req, pad, pkey: PKey(pkey), fecn, becn,
            dest_qp: Qpn::new(dest_qp), ack_req, psn: Psn::new(psn),
        }
    }
}

prop_compose! {
    /// A header with exactly the fields that its opcode requires.
    fn any_header()(
        bth in any_bth(), qkey: u32, src_qp: u32, srqn in 0u32..1 << 24, feth: u32, addr: u64,
        rkey: u32, length: u32, operands: [u64; 2], syndrome: u8, msn in 0u32..1 << 24,
        imm: u32,
    ) -> Header {
        let has = bth.opcode.info().headers;
        Header {
            bth,
            deth: has.contains(Headers::DETH)
                .then_some(Deth { qkey: QKey(qkey), src_qp: Qpn::new(src_qp) }),
            xrceth: has.contains(Headers::XRCETH).then_some(Xrceth { srqn: Srqn::new(srqn) }),
            feth: has.contains(Headers::FETH).then_some(Feth::from_bits_retain(feth)),
            reth: has.contains(Headers::RETH)
                .then_some(Reth { addr, rkey: RKey(rkey), length }),
            atomic: has.contains(Headers::ATOMIC_ETH).then_some(AtomicEth {
                addr, rkey: RKey(rkey), swap_or_add: operands[0], compare: operands[1],
            }),
            aeth: has.contains(Headers::AETH)
                .then_some(Aeth { syndrome: Syndrome::from_byte(syndrome), msn }),
            atomic_ack: has.contains(Headers::ATOMIC_ACK_ETH).then_some(operands[0]),
            imm: has.contains(Headers::IMMDT).then_some(imm),
            ieth: has.contains(Headers::IETH).then_some(RKey(rkey)),
        }
    }
}

fn emit(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = vec![0xaa; packet.len()];
    assert_eq!(packet.emit(&mut bytes), bytes.len());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn parse_undoes_emit(header in any_header(), data in vec(any::<u8>(), 0..70)) {
        let data = match header.bth.opcode.info().payload {
            PayloadRule::None => &[],
            _ => &data[..],
        };
        let header = header.with_payload_len(data.len());
        let bytes = emit(&Packet { header, payload: data });
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { header, payload: data }));
    }

    #[test]
    fn parse_never_panics(bytes in vec(any::<u8>(), 0..120)) {
        let _ = Packet::parse(&bytes);
    }

    #[test]
    fn parse_never_panics_after_a_valid_bth(
        bth in any_bth(), rest in vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = vec![0; Bth::LEN];
        bth.emit(&mut bytes);
        bytes.extend(&rest);
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert_eq!(packet.header.bth, bth);
            prop_assert_eq!(
                packet.header.len() + packet.payload.len() + usize::from(bth.pad),
                bytes.len()
            );
        }
    }

    #[test]
    fn every_prefix_of_a_packet_without_payload_is_truncated(
        header in any_header(), cut in any::<prop::sample::Index>(),
    ) {
        let header = header.with_payload_len(0);
        let bytes = emit(&Packet { header, payload: &[] });
        let have = cut.index(bytes.len());
        let error = Packet::parse(&bytes[..have]).unwrap_err();
        if have < Bth::LEN {
            prop_assert_eq!(error, ParseError::TooShort { have });
        } else {
            let ParseError::Truncated { opcode, need, have, .. } = error else {
                panic!("{error}");
            };
            prop_assert_eq!(opcode, header.bth.opcode);
            prop_assert!(have < need);
        }
    }
}

#[test]
fn every_opcode_has_the_length_of_its_headers() {
    for (opcode, len) in [
        (Opcode::RcSendMiddle, 12),
        (Opcode::RcWriteOnlyImm, 12 + 16 + 4),
        (Opcode::RcReadRequest, 12 + 16),
        (Opcode::RcReadResponseMiddle, 12),
        (Opcode::RcAck, 12 + 4),
        (Opcode::RcAtomicAck, 12 + 4 + 8),
        (Opcode::RcCompareSwap, 12 + 28),
        (Opcode::RcSendOnlyInv, 12 + 4),
        (Opcode::RcFlush, 12 + 4 + 16),
        (Opcode::RcAtomicWrite, 12 + 16),
        (Opcode::UdSendOnlyImm, 12 + 8 + 4),
        (Opcode::XrcFetchAdd, 12 + 4 + 28),
        (Opcode::XrcWriteOnlyImm, 12 + 4 + 16 + 4),
        (Opcode::Cnp, 12 + 16),
    ] {
        let header = Header::new(opcode, Qpn::new(1), Psn::new(0));
        assert_eq!(header.len(), len, "{opcode:?}");
    }
}

#[test]
fn pad_rounds_up_to_a_multiple_of_4() {
    assert_eq!([0, 1, 2, 3, 4, 5].map(pad_of), [0, 3, 2, 1, 0, 3]);
    assert_eq!(packet_len(16, 5), 24);
    assert_eq!(packet_len(12, 4096), 4108);
}

/// An RC SEND Only without payload, with some bytes replaced.
fn send_only(changes: &[(usize, u8)]) -> Vec<u8> {
    let header = Header::new(Opcode::RcSendOnly, Qpn::new(2), Psn::new(3));
    let mut bytes = emit(&Packet {
        header,
        payload: &[],
    });
    for &(at, value) in changes {
        bytes[at] = value;
    }
    bytes
}

#[test]
fn bytes_without_a_whole_bth_are_too_short() {
    assert_eq!(Packet::parse(&[]), Err(ParseError::TooShort { have: 0 }));
    assert_eq!(
        Packet::parse(&send_only(&[])[..11]),
        Err(ParseError::TooShort { have: 11 })
    );
}

#[test]
fn transport_version_is_0() {
    assert_eq!(
        Packet::parse(&send_only(&[(1, 0x43)])),
        Err(ParseError::TransportVersion(3))
    );
}

#[test]
fn reserved_opcodes_are_refused_except_those_of_rc() {
    for opcode in [0x2c, 0x35, 0x3f, 0x44, 0x66, 0x80, 0xb5, 0xc2, 0xff] {
        assert_eq!(
            Packet::parse(&send_only(&[(0, opcode)])),
            Err(ParseError::ReservedOpcode(opcode))
        );
    }
}

#[test]
fn length_is_a_multiple_of_4() {
    let mut bytes = send_only(&[]);
    bytes.extend([1, 2]);
    assert_eq!(Packet::parse(&bytes), Err(ParseError::Unaligned(14)));
}

#[test]
fn parse_error_names_the_missing_header() {
    let mut bytes = send_only(&[(0, Opcode::RcWriteOnlyImm as u8)]);
    bytes.extend([0; 16]);
    let error = Packet::parse(&bytes).unwrap_err();
    let opcode = Opcode::RcWriteOnlyImm;
    assert_eq!(
        error,
        ParseError::Truncated {
            opcode,
            header: "ImmDt",
            need: 4,
            have: 0
        }
    );
    assert_eq!(
        error.to_string(),
        "RC RDMA WRITE Only with Immediate: 0 bytes are too short for the ImmDt, which takes 4"
    );
}

#[test]
fn short_cnp_is_refused() {
    let mut bytes = [0; 28];
    Header::cnp(Qpn::new(0x118)).emit(&mut bytes);
    assert!(Packet::parse(&bytes).is_ok());
    assert_eq!(
        Packet::parse(&bytes[..24]),
        Err(ParseError::Truncated {
            opcode: Opcode::Cnp,
            header: "CNP padding",
            need: 16,
            have: 12
        })
    );
}

#[test]
fn pad_is_not_longer_than_the_bytes_after_the_headers() {
    let opcode = Opcode::RcSendOnly;
    assert_eq!(
        Packet::parse(&send_only(&[(1, 0x30)])),
        Err(ParseError::Pad {
            opcode,
            pad: 3,
            have: 0
        })
    );
    // The pad is also checked where no payload is permitted.
    let opcode = Opcode::RcAck;
    let mut bytes = send_only(&[(0, opcode as u8), (1, 0x10)]);
    bytes.extend([0; 4]);
    assert_eq!(
        Packet::parse(&bytes),
        Err(ParseError::Pad {
            opcode,
            pad: 1,
            have: 0
        })
    );
}

#[test]
fn payload_is_refused_where_the_opcode_permits_none() {
    for opcode in Opcode::all().filter(|o| o.info().payload == PayloadRule::None) {
        let mut bytes = send_only(&[(0, opcode as u8)]);
        bytes.resize(Bth::LEN + opcode.info().headers_len + 4, 0);
        assert_eq!(
            Packet::parse(&bytes),
            Err(ParseError::UnexpectedPayload { opcode, len: 4 })
        );
    }
}

#[test]
fn uc_send_only_matches_scapy_byte_by_byte() {
    // From scapy's test/contrib/roce.uts: BTH(opcode='UC_SEND_ONLY', migreq=1, padcount=2,
    // pkey=0xffff, dqpn=211, psn=13571856).
    let header = Header::new(Opcode::UcSendOnly, Qpn::new(211), Psn::new(13_571_856));
    let bytes = emit(&Packet {
        header,
        payload: &[0x46, 0x30],
    });
    let expected = [
        0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211, 0, 0xcf, 0x17, 0x10, 0x46, 0x30, 0, 0,
    ];
    assert_eq!(bytes, expected);
    let packet = Packet::parse(&expected).unwrap();
    assert_eq!(packet.payload, [0x46, 0x30]);
    assert_eq!(packet.header.bth.pad, 2);
}
