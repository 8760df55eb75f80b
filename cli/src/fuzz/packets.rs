//! The packets of test cases: valid requests, and mutations that break a rule.

use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngExt as _};
use urxe_proto::ids::RKey;
use urxe_proto::psn::Psn;
use urxe_proto::wire::{
    Aeth, AtomicEth, Bth, Header, Headers, NakCode, Opcode, Operation, Packet, Position, Reth,
    Syndrome, Transport,
};

use super::connection::MTU;
use super::oracle::Responder;
use super::rng::TestRng;

/// A packet to send.
pub struct TestPacket {
    /// The bytes from the BTH to the pad.
    pub bytes: Vec<u8>,
    /// Whether to send it with the right ICRC.
    pub valid_icrc: bool,
}

/// The length of READs and WRITEs, in packets.
const MAX_PACKETS: u32 = 4;

/// The distance ahead of the expected PSN at which a responder may keep out-of-order packets.
const OUT_OF_ORDER_WINDOW: i32 = 1 << 16;

/// The offsets of fields in the BTH, and in the RETH or AtomicETH that follows.
const PKEY: usize = 2;
const DEST_QP: usize = 5;
const ACK_REQ: usize = 8;
const PSN: usize = 9;
const ADDR: usize = 12;
const RKEY: usize = 20;
const LENGTH: usize = 24;

/// Returns a packet for a responder in this state. Half of the packets are valid requests.
pub fn generate(rng: &mut TestRng, responder: &Responder) -> TestPacket {
    let mut bytes = request(rng, responder);
    let mut valid_icrc = true;
    if rng.random_bool(0.5) {
        mutate(rng, responder, &mut bytes, &mut valid_icrc);
        avoid_out_of_order_window(responder, &mut bytes);
    }
    TestPacket { bytes, valid_icrc }
}

/// Returns a packet that shows whether the responder responds and which PSN it expects: an empty
/// WRITE, or within a message a duplicate of its latest packet.
pub fn probe(responder: &Responder) -> Vec<u8> {
    match (responder.message_in_progress(), responder.executed.last()) {
        (Some(_), Some(executed)) => {
            let mut bytes = executed.bytes.clone();
            bytes[ACK_REQ] |= 0x80;
            bytes
        }
        _ => emit(
            header(responder, Opcode::RcWriteOnly)
                .with_ack_req(true)
                .with_reth(EMPTY),
            &[],
        ),
    }
}

/// Returns a valid packet that continues or completes the message in progress.
pub fn finish(responder: &Responder) -> TestPacket {
    let left = match responder.message_in_progress() {
        Some(Some(left)) => left,
        _ => 1,
    };
    let write = responder
        .message_in_progress()
        .is_some_and(|write| write.is_some());
    let (opcode, len) = match (write, left > MTU.bytes() as u64) {
        (true, true) => (Opcode::RcWriteMiddle, MTU.bytes()),
        (true, false) => (Opcode::RcWriteLast, left as usize),
        (false, _) => (Opcode::RcSendLast, 1),
    };
    let header = header(responder, opcode).with_ack_req(true);
    TestPacket {
        bytes: emit(header, &vec![0; len]),
        valid_icrc: true,
    }
}

/// Returns a READ of granted memory.
pub fn read(responder: &Responder, reth: Reth) -> Vec<u8> {
    emit(
        header(responder, Opcode::RcReadRequest).with_reth(reth),
        &[],
    )
}

/// Returns the next request: a WRITE of one packet.
pub fn write(responder: &Responder, reth: Reth, data: &[u8]) -> Vec<u8> {
    let header = header(responder, Opcode::RcWriteOnly);
    emit(header.with_ack_req(true).with_reth(reth), data)
}

/// The RETH of a request without data.
const EMPTY: Reth = Reth {
    addr: 0,
    rkey: RKey(0),
    length: 0,
};

fn header(responder: &Responder, opcode: Opcode) -> Header {
    Header::new(opcode, responder.qpn(), responder.expected())
}

fn emit(header: Header, payload: &[u8]) -> Vec<u8> {
    let packet = Packet { header, payload };
    let mut bytes = vec![0; packet.len()];
    packet.emit(&mut bytes);
    bytes
}

fn random_bytes(rng: &mut TestRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Returns a valid request with the expected PSN.
fn request(rng: &mut TestRng, responder: &Responder) -> Vec<u8> {
    let mtu = MTU.bytes() as u32;
    let longest = responder
        .grant()
        .map_or(0, |grant| grant.len.min(MAX_PACKETS * mtu));
    let operation = match responder.message_in_progress() {
        Some(None) => Operation::Send,
        Some(Some(_)) => Operation::Write,
        None if longest >= 8 => *[
            Operation::Send,
            Operation::Write,
            Operation::Write,
            Operation::ReadRequest,
            Operation::CompareSwap,
            Operation::FetchAdd,
        ]
        .choose(rng)
        .unwrap_or(&Operation::Write),
        None => *[Operation::Send, Operation::Write, Operation::ReadRequest]
            .choose(rng)
            .unwrap_or(&Operation::Write),
    };
    let (position, len, total) = match (responder.message_in_progress(), operation) {
        (Some(Some(left)), _) if left > u64::from(mtu) => (Position::Middle, mtu, 0),
        (Some(Some(left)), _) => (Position::Last, left as u32, 0),
        (Some(None), _) if rng.random_bool(0.3) => (Position::Middle, mtu, 0),
        (Some(None), _) => (Position::Last, rng.random_range(1..=mtu), 0),
        (None, Operation::Send) if rng.random_bool(0.3) => (Position::First, mtu, 0),
        (None, Operation::Write) if longest > mtu && rng.random_bool(0.4) => {
            (Position::First, mtu, rng.random_range(mtu + 1..=longest))
        }
        (None, Operation::ReadRequest) => (Position::Only, 0, rng.random_range(0..=longest)),
        (None, Operation::Send) => {
            let len = rng.random_range(0..=mtu);
            (Position::Only, len, len)
        }
        (None, Operation::Write) => {
            let len = rng.random_range(0..=mtu.min(longest));
            (Position::Only, len, len)
        }
        (None, _) => (Position::Only, 0, 8),
    };
    let may_have_imm = operation == Operation::Send || operation == Operation::Write;
    let imm = may_have_imm && position.ends() && rng.random_bool(0.2);
    let extra = if imm {
        Headers::IMMDT
    } else {
        Headers::empty()
    };
    let opcode =
        Opcode::of(Transport::Rc, operation, position, extra).unwrap_or(Opcode::RcSendOnly);
    // A request that may get an RNR NAK must be acknowledged.
    let ack_req = operation == Operation::Send || imm || rng.random_bool(0.7);
    let mut header = header(responder, opcode).with_ack_req(ack_req);
    let has = opcode.info().headers;
    let step = if has.contains(Headers::ATOMIC_ETH) {
        8
    } else {
        1
    };
    let place = responder.grant().filter(|_| total > 0).map(|grant| {
        let offset = rng.random_range(0..=grant.len - total) / step * step;
        (grant.addr + u64::from(offset), grant.rkey)
    });
    let (addr, rkey) = place.unwrap_or((EMPTY.addr, EMPTY.rkey));
    if has.contains(Headers::RETH) {
        header = header.with_reth(Reth {
            addr,
            rkey,
            length: total,
        });
    }
    if has.contains(Headers::ATOMIC_ETH) {
        header = header.with_atomic(AtomicEth {
            addr,
            rkey,
            swap_or_add: rng.next_u64(),
            compare: rng.next_u64(),
        });
    }
    if imm {
        header = header.with_imm(rng.next_u32());
    }
    emit(header, &random_bytes(rng, len as usize))
}

/// Mutates a packet. By chance the result may still be valid.
fn mutate(rng: &mut TestRng, responder: &Responder, bytes: &mut Vec<u8>, valid_icrc: &mut bool) {
    match rng.random_range(0..14) {
        0 => {
            let ahead = match rng.random_bool(0.8) {
                true => rng.random_range(1..8),
                false => rng.random_range(1..Psn::SPACE / 2),
            };
            put_psn(bytes, responder.expected() + ahead);
        }
        1 | 2 => {
            if let Some(executed) = responder.executed.choose(rng) {
                *bytes = executed.bytes.clone();
                bytes[ACK_REQ] |= 0x80;
            }
        }
        3 => put_psn(bytes, responder.expected() - rng.random_range(1..32)),
        4 => bytes[0] = rng.random_range(0..0x20),
        5 => bytes[0] = rng.next_u32() as u8,
        6 => {
            let len = rng.random_range(Bth::LEN / 4..=(bytes.len() / 4).max(4)) * 4;
            bytes.resize(len, 0);
        }
        7 => {
            let more = rng.random_range(1..=(MTU.bytes() / 4)) * 4;
            let more = random_bytes(rng, more);
            bytes.extend(more);
        }
        8 => *valid_icrc = false,
        9 => mutate_bth(rng, bytes),
        10 | 11 => mutate_reth(rng, bytes),
        12 => *bytes = unsolicited_response(rng, responder),
        _ => {
            let headers = bytes.len().min(LENGTH + 16);
            for _ in 0..rng.random_range(1..=3) {
                let at = rng.random_range(0..headers);
                bytes[at] ^= 1 << rng.random_range(0..8);
            }
        }
    }
}

/// Moves a PSN that is slightly ahead beyond the responder's out-of-order window. A responder may
/// keep out-of-order packets and execute them after the gap is filled.
fn avoid_out_of_order_window(responder: &Responder, bytes: &mut [u8]) {
    let Some([high, middle, low]) = bytes.get(PSN..Bth::LEN).and_then(|psn| psn.first_chunk())
    else {
        return;
    };
    let psn = Psn::new(u32::from_be_bytes([0, *high, *middle, *low]));
    if (1..OUT_OF_ORDER_WINDOW).contains(&psn.diff(responder.expected())) {
        put_psn(bytes, psn + OUT_OF_ORDER_WINDOW as u32);
    }
}

fn put_psn(bytes: &mut [u8], psn: Psn) {
    bytes[PSN..Bth::LEN].copy_from_slice(&psn.get().to_be_bytes()[1..]);
}

fn mutate_bth(rng: &mut TestRng, bytes: &mut [u8]) {
    match rng.random_range(0..5) {
        // Transport version, pad count, migration state, solicited event.
        0 => bytes[1] = rng.next_u32() as u8,
        1 => bytes[1] = bytes[1] & 0xcf | (rng.random_range(0..4) << 4),
        2 => bytes[PKEY..PKEY + 2].copy_from_slice(&(rng.next_u32() as u16).to_be_bytes()),
        3 => bytes[DEST_QP + rng.random_range(0..3)] ^= 1 << rng.random_range(0..8),
        // Reserved bits and congestion bits.
        _ => {
            bytes[Bth::VARIANT_BYTE] = rng.next_u32() as u8;
            bytes[ACK_REQ] ^= rng.next_u32() as u8 & 0x7f;
        }
    }
}

/// Mutates the address, rkey or length of a packet with a RETH or AtomicETH.
fn mutate_reth(rng: &mut TestRng, bytes: &mut [u8]) {
    if bytes.len() < LENGTH + 4 {
        return;
    }
    match rng.random_range(0..5) {
        0 => bytes[ADDR..RKEY].copy_from_slice(&rng.next_u64().to_be_bytes()),
        1 => bytes[RKEY - 1] ^= 1 << rng.random_range(0..3),
        2 => bytes[RKEY + rng.random_range(0..4)] ^= 1 << rng.random_range(0..8),
        3 => bytes[LENGTH..LENGTH + 4].copy_from_slice(&rng.next_u32().to_be_bytes()),
        _ => bytes[LENGTH + 3] ^= 1 << rng.random_range(0..8),
    }
}

/// Returns a response packet, although the peer has sent no request.
fn unsolicited_response(rng: &mut TestRng, responder: &Responder) -> Vec<u8> {
    let syndromes = [
        Syndrome::from_byte(0),
        Syndrome::from_byte(0x2c),
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::from_byte(0xff),
    ];
    let syndrome = *syndromes.choose(rng).unwrap_or(&syndromes[0]);
    let msn = rng.random_range(0..Psn::SPACE);
    let aeth = Aeth { syndrome, msn };
    let opcodes = [
        Opcode::RcAck,
        Opcode::RcAtomicAck,
        Opcode::RcReadResponseOnly,
        Opcode::RcReadResponseMiddle,
    ];
    let opcode = *opcodes.choose(rng).unwrap_or(&Opcode::RcAck);
    let mut header = Header::new(opcode, responder.qpn(), Psn::new(rng.next_u32()));
    let has = opcode.info().headers;
    if has.contains(Headers::AETH) {
        header = header.with_aeth(aeth);
    }
    if has.contains(Headers::ATOMIC_ACK_ETH) {
        header = header.with_atomic_ack(rng.next_u64());
    }
    let full = opcode == Opcode::RcReadResponseMiddle;
    let data = random_bytes(rng, if full { MTU.bytes() } else { 0 });
    emit(header, &data)
}
