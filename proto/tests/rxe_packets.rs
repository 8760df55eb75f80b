//! Packets sent by the Linux kernel's rxe: their ICRC is valid, they parse, and re-encoding them
//! yields the same bytes. The same holds for the messages of the kernel's connection manager. The
//! vector file describes how the packets were captured.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use urxe_proto::cm::wire::{Answered, Attribute, IpHeader, Message, PortSpace, RejectReason};
use urxe_proto::cm::{timing, wire};
use urxe_proto::icrc::{self, Flow, IpId};
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::wire::{Opcode, Operation, Packet, Transport};

const VECTORS: &str = include_str!("vectors/rxe.txt");
/// The length of a UDP header, in bytes.
const UDP: usize = 8;

/// A vector, parsed as far as UDP.
struct Vector {
    opcode: u8,
    /// The syndrome of an acknowledgement, or the attribute ID of a MAD.
    what: u8,
    flow: Flow,
    id: IpId,
    datagram: Vec<u8>,
}

fn vectors() -> Vec<Vector> {
    VECTORS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(vector)
        .collect()
}

fn vector(line: &str) -> Vector {
    let fields: Vec<&str> = line.split(' ').collect();
    let [_, opcode, what, bytes] = fields[..] else {
        panic!("four fields in {line}");
    };
    let number = |text: &str| u8::from_str_radix(text, 16).expect("a byte in hexadecimal");
    let bytes: Vec<u8> = (0..bytes.len() / 2)
        .map(|i| number(&bytes[2 * i..2 * i + 2]))
        .collect();
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (src, dst, header, id): (IpAddr, IpAddr, usize, IpId) = if bytes[0] == 0x45 {
        let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap());
        let id = IpId {
            id: word(4),
            dont_fragment: word(6) & 0x4000 != 0,
        };
        (address(12).into(), address(16).into(), 20, id)
    } else {
        let address =
            |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap());
        (address(8).into(), address(24).into(), 40, IpId::default())
    };
    let ports = (word(header), word(header + 2));
    let flow = Flow::new(SocketAddr::new(src, ports.0), SocketAddr::new(dst, ports.1));
    assert_eq!(usize::from(word(header + 4)), bytes.len() - header);
    Vector {
        opcode: number(opcode),
        what: number(what),
        flow: flow.expect("both of one version"),
        id,
        datagram: bytes[header + UDP..].to_vec(),
    }
}

#[test]
fn computed_icrc_matches() {
    for vector in vectors() {
        let (packet, icrc) = vector.datagram.split_last_chunk::<4>().unwrap();
        let ours = icrc::compute(&vector.flow, vector.id.id, vector.id.dont_fragment, packet);
        assert_eq!(ours, *icrc, "opcode {:#04x}", vector.opcode);
    }
}

#[test]
fn icrc_verifies_without_knowing_the_identification() {
    for vector in vectors() {
        let found = icrc::verify(&vector.flow, &vector.datagram, IpId::default());
        assert_eq!(found, Ok(vector.id), "opcode {:#04x}", vector.opcode);
    }
}

#[test]
fn packets_round_trip() {
    for vector in vectors() {
        let packet = vector.datagram.split_last_chunk::<4>().unwrap().0;
        let parsed = Packet::parse(packet).unwrap();
        assert_eq!(parsed.header.bth.opcode as u8, vector.opcode);
        if let Some(aeth) = parsed.header.aeth
            && vector.what != 0
        {
            assert_eq!(aeth.syndrome.to_byte(), vector.what);
        }
        let mut again = vec![0xaa; parsed.len()];
        parsed.emit(&mut again);
        assert_eq!(again, packet, "opcode {:#04x}", vector.opcode);
    }
}

#[test]
fn vectors_cover_every_opcode_of_the_connected_transports() {
    let there: BTreeSet<u8> = vectors().iter().map(|vector| vector.opcode).collect();
    // Opcodes that rxe 6.1 does not support, and reserved ones.
    let absent = |opcode: &Opcode| {
        matches!(
            opcode.info().operation,
            Operation::Flush | Operation::AtomicWrite | Operation::Reserved
        )
    };
    let missing: Vec<Opcode> = Opcode::all()
        .filter(|opcode| matches!(opcode.info().transport, Transport::Rc | Transport::Uc))
        .filter(|opcode| !absent(opcode) && !there.contains(&(*opcode as u8)))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The messages of the kernel's connection manager, with the addresses of their packets, and the
/// MADs.
fn mads() -> Vec<(Flow, Vec<u8>, Message)> {
    vectors()
        .into_iter()
        .filter_map(|vector| {
            let packet = vector.datagram.split_last_chunk::<4>()?.0;
            let parsed = Packet::parse(packet).ok()?;
            let is_mad = parsed.header.deth.is_some() && parsed.header.bth.dest_qp == Qpn::GSI;
            let mad = parsed.payload.to_vec();
            is_mad.then(|| {
                let message = Message::parse(&mad).expect("a message").1;
                assert_eq!(message.attribute() as u8, vector.what);
                (vector.flow, mad, message)
            })
        })
        .collect()
}

#[test]
fn connection_manager_messages_round_trip() {
    for (_, mad, message) in mads() {
        let (transaction, _) = Message::parse(&mad).unwrap();
        assert_eq!(message.to_mad(transaction)[..], mad[..], "{message:?}");
    }
}

#[test]
fn vectors_cover_every_message_of_the_kernel_over_ipv4_and_ipv6() {
    use Attribute::{Drep, Dreq, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
    for v4 in [true, false] {
        for wanted in [Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep] {
            let is_it = |(flow, _, message): &(Flow, Vec<u8>, Message)| {
                matches!(flow, Flow::V4 { .. }) == v4 && message.attribute() == wanted
            };
            assert!(mads().iter().any(is_it), "{wanted:?}, IPv4: {v4}");
        }
    }
}

#[test]
fn requests_of_the_kernel_have_the_fields_of_ours() {
    for (_, _, message) in mads() {
        let Message::Req(req) = message else {
            continue;
        };
        assert_eq!(req.transport, wire::Transport::Rc);
        assert_eq!(req.service.port(), Some((PortSpace::Tcp, 7174)));
        assert_eq!(req.remote_response_timeout, timing::RESPONSE_TIMEOUT);
        assert_eq!(req.local_response_timeout, timing::RESPONSE_TIMEOUT);
        assert_eq!(req.max_cm_retries, timing::MAX_RETRIES);
        assert_eq!(req.primary.hop_limit, 64);
        let (header, _) = IpHeader::parse(&req.private_data.0).unwrap();
        assert_eq!(Gid::from_ip(header.destination), req.primary.remote_gid);
        assert_eq!(Gid::from_ip(header.source.ip()), req.primary.local_gid);
    }
}

#[test]
fn kernel_rejects_an_unknown_service_with_invalid_service_id() {
    for (_, _, message) in mads() {
        let Message::Rej(rej) = message else {
            continue;
        };
        assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
        assert_eq!(rej.answered, Answered::Req);
    }
}
