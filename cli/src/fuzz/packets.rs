//! The packets that are tried: requests as they should be, and what becomes of them when a rule is broken.

use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngExt as _};
use urxe_proto::ids::RKey;
use urxe_proto::psn::Psn;
use urxe_proto::wire::{
    Aeth, AtomicEth, Bth, Header, Headers, NakCode, Opcode, Operation, Packet, Position, Reth,
    Syndrome, Transport,
};

use super::Draw;
use super::connection::MTU;
use super::oracle::Responder;

/// A packet on its way.
pub struct Trial {
    /// From the BTH to the pad.
    pub bytes: Vec<u8>,
    /// With the right ICRC.
    pub sealed: bool,
}

/// READs and WRITEs have at most this many packets.
const LONGEST: u32 = 4;

/// How far ahead a responder may keep packets.
const MAY_KEEP: i32 = 1 << 16;

/// Where fields lie: those of the BTH, and of the RETH or AtomicETH after it.
const PKEY: usize = 2;
const DEST_QP: usize = 5;
const ACK_REQ: usize = 8;
const PSN: usize = 9;
const ADDR: usize = 12;
const RKEY: usize = 20;
const LENGTH: usize = 24;

/// A packet for a responder in this state: half of the time a request as it should be.
pub fn draw(draw: &mut Draw, responder: &Responder) -> Trial {
    let mut bytes = request(draw, responder);
    let mut sealed = true;
    if draw.random_bool(0.5) {
        spoil(draw, responder, &mut bytes, &mut sealed);
        keep_away(responder, &mut bytes);
    }
    Trial { bytes, sealed }
}

/// What shows that the responder lives and where it stands: an empty WRITE, or, within a message, its latest
/// packet once more.
pub fn probe(responder: &Responder) -> Vec<u8> {
    match (responder.under_way(), responder.done.last()) {
        (Some(_), Some(done)) => {
            let mut bytes = done.bytes.clone();
            bytes[ACK_REQ] |= 0x80;
            bytes
        }
        _ => emit(
            header(responder, Opcode::RcWriteOnly)
                .with_ack_req(true)
                .with_reth(NOTHING),
            &[],
        ),
    }
}

/// The end of the message under way, as it should be.
pub fn finish(responder: &Responder) -> Trial {
    let left = match responder.under_way() {
        Some(Some(left)) => left,
        _ => 1,
    };
    let write = responder.under_way().is_some_and(|write| write.is_some());
    let (opcode, len) = match (write, left > MTU.bytes() as u64) {
        (true, true) => (Opcode::RcWriteMiddle, MTU.bytes()),
        (true, false) => (Opcode::RcWriteLast, left as usize),
        (false, _) => (Opcode::RcSendLast, 1),
    };
    let header = header(responder, opcode).with_ack_req(true);
    Trial {
        bytes: emit(header, &vec![0; len]),
        sealed: true,
    }
}

/// A READ of what is granted, a piece of it.
pub fn read(responder: &Responder, reth: Reth) -> Vec<u8> {
    emit(
        header(responder, Opcode::RcReadRequest).with_reth(reth),
        &[],
    )
}

/// The next WRITE, of one packet.
pub fn write(responder: &Responder, reth: Reth, data: &[u8]) -> Vec<u8> {
    let header = header(responder, Opcode::RcWriteOnly);
    emit(header.with_ack_req(true).with_reth(reth), data)
}

/// The memory of a request that touches none.
const NOTHING: Reth = Reth {
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

fn some_bytes(draw: &mut Draw, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    draw.fill_bytes(&mut bytes);
    bytes
}

/// A request whose turn it is.
fn request(draw: &mut Draw, responder: &Responder) -> Vec<u8> {
    let mtu = MTU.bytes() as u32;
    let longest = responder
        .grant()
        .map_or(0, |grant| grant.len.min(LONGEST * mtu));
    let operation = match responder.under_way() {
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
        .choose(draw)
        .unwrap_or(&Operation::Write),
        None => *[Operation::Send, Operation::Write, Operation::ReadRequest]
            .choose(draw)
            .unwrap_or(&Operation::Write),
    };
    let (position, len, total) = match (responder.under_way(), operation) {
        (Some(Some(left)), _) if left > u64::from(mtu) => (Position::Middle, mtu, 0),
        (Some(Some(left)), _) => (Position::Last, left as u32, 0),
        (Some(None), _) if draw.random_bool(0.3) => (Position::Middle, mtu, 0),
        (Some(None), _) => (Position::Last, draw.random_range(1..=mtu), 0),
        (None, Operation::Send) if draw.random_bool(0.3) => (Position::First, mtu, 0),
        (None, Operation::Write) if longest > mtu && draw.random_bool(0.4) => {
            (Position::First, mtu, draw.random_range(mtu + 1..=longest))
        }
        (None, Operation::ReadRequest) => (Position::Only, 0, draw.random_range(0..=longest)),
        (None, Operation::Send) => {
            let len = draw.random_range(0..=mtu);
            (Position::Only, len, len)
        }
        (None, Operation::Write) => {
            let len = draw.random_range(0..=mtu.min(longest));
            (Position::Only, len, len)
        }
        (None, _) => (Position::Only, 0, 8),
    };
    let may_have_imm = operation == Operation::Send || operation == Operation::Write;
    let imm = may_have_imm && position.ends() && draw.random_bool(0.2);
    let extra = if imm {
        Headers::IMMDT
    } else {
        Headers::empty()
    };
    let opcode =
        Opcode::of(Transport::Rc, operation, position, extra).unwrap_or(Opcode::RcSendOnly);
    // What may find no receive is always to be answered.
    let ack_req = operation == Operation::Send || imm || draw.random_bool(0.7);
    let mut header = header(responder, opcode).with_ack_req(ack_req);
    let has = opcode.info().headers;
    let step = if has.contains(Headers::ATOMIC_ETH) {
        8
    } else {
        1
    };
    let place = responder.grant().filter(|_| total > 0).map(|grant| {
        let offset = draw.random_range(0..=grant.len - total) / step * step;
        (grant.addr + u64::from(offset), grant.rkey)
    });
    let (addr, rkey) = place.unwrap_or((NOTHING.addr, NOTHING.rkey));
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
            swap_or_add: draw.next_u64(),
            compare: draw.next_u64(),
        });
    }
    if imm {
        header = header.with_imm(draw.next_u32());
    }
    emit(header, &some_bytes(draw, len as usize))
}

/// Breaks a rule; or does not, by chance.
fn spoil(draw: &mut Draw, responder: &Responder, bytes: &mut Vec<u8>, sealed: &mut bool) {
    match draw.random_range(0..14) {
        0 => {
            let ahead = match draw.random_bool(0.8) {
                true => draw.random_range(1..8),
                false => draw.random_range(1..Psn::SPACE / 2),
            };
            put_psn(bytes, responder.expected() + ahead);
        }
        1 | 2 => {
            if let Some(done) = responder.done.choose(draw) {
                *bytes = done.bytes.clone();
                bytes[ACK_REQ] |= 0x80;
            }
        }
        3 => put_psn(bytes, responder.expected() - draw.random_range(1..32)),
        4 => bytes[0] = draw.random_range(0..0x20),
        5 => bytes[0] = draw.next_u32() as u8,
        6 => {
            let len = draw.random_range(Bth::LEN / 4..=(bytes.len() / 4).max(4)) * 4;
            bytes.resize(len, 0);
        }
        7 => {
            let more = draw.random_range(1..=(MTU.bytes() / 4)) * 4;
            let more = some_bytes(draw, more);
            bytes.extend(more);
        }
        8 => *sealed = false,
        9 => spoil_bth(draw, bytes),
        10 | 11 => spoil_place(draw, bytes),
        12 => *bytes = answer_to_nothing(draw, responder),
        _ => {
            let headers = bytes.len().min(LENGTH + 16);
            for _ in 0..draw.random_range(1..=3) {
                let at = draw.random_range(0..headers);
                bytes[at] ^= 1 << draw.random_range(0..8);
            }
        }
    }
}

/// A responder may keep what comes a little ahead, as if the network were late with what is missing, and carry
/// it out when that has come. So what is ahead is so by more than a connection here has packets.
fn keep_away(responder: &Responder, bytes: &mut [u8]) {
    let Some([high, middle, low]) = bytes.get(PSN..Bth::LEN).and_then(|psn| psn.first_chunk())
    else {
        return;
    };
    let psn = Psn::new(u32::from_be_bytes([0, *high, *middle, *low]));
    if (1..MAY_KEEP).contains(&psn.diff(responder.expected())) {
        put_psn(bytes, psn + MAY_KEEP as u32);
    }
}

fn put_psn(bytes: &mut [u8], psn: Psn) {
    bytes[PSN..Bth::LEN].copy_from_slice(&psn.get().to_be_bytes()[1..]);
}

fn spoil_bth(draw: &mut Draw, bytes: &mut [u8]) {
    match draw.random_range(0..5) {
        // Version, pad, migration, solicited event.
        0 => bytes[1] = draw.next_u32() as u8,
        1 => bytes[1] = bytes[1] & 0xcf | (draw.random_range(0..4) << 4),
        2 => bytes[PKEY..PKEY + 2].copy_from_slice(&(draw.next_u32() as u16).to_be_bytes()),
        3 => bytes[DEST_QP + draw.random_range(0..3)] ^= 1 << draw.random_range(0..8),
        // Reserved bits, and congestion's.
        _ => {
            bytes[Bth::VARIANT_BYTE] = draw.next_u32() as u8;
            bytes[ACK_REQ] ^= draw.next_u32() as u8 & 0x7f;
        }
    }
}

/// Another address, key or length, where there is one.
fn spoil_place(draw: &mut Draw, bytes: &mut [u8]) {
    if bytes.len() < LENGTH + 4 {
        return;
    }
    match draw.random_range(0..5) {
        0 => bytes[ADDR..RKEY].copy_from_slice(&draw.next_u64().to_be_bytes()),
        1 => bytes[RKEY - 1] ^= 1 << draw.random_range(0..3),
        2 => bytes[RKEY + draw.random_range(0..4)] ^= 1 << draw.random_range(0..8),
        3 => bytes[LENGTH..LENGTH + 4].copy_from_slice(&draw.next_u32().to_be_bytes()),
        _ => bytes[LENGTH + 3] ^= 1 << draw.random_range(0..8),
    }
}

/// The peer has asked nothing, so that no answer is wanted.
fn answer_to_nothing(draw: &mut Draw, responder: &Responder) -> Vec<u8> {
    let syndromes = [
        Syndrome::from_byte(0),
        Syndrome::from_byte(0x2c),
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::from_byte(0xff),
    ];
    let syndrome = *syndromes.choose(draw).unwrap_or(&syndromes[0]);
    let msn = draw.random_range(0..Psn::SPACE);
    let aeth = Aeth { syndrome, msn };
    let opcodes = [
        Opcode::RcAck,
        Opcode::RcAtomicAck,
        Opcode::RcReadResponseOnly,
        Opcode::RcReadResponseMiddle,
    ];
    let opcode = *opcodes.choose(draw).unwrap_or(&Opcode::RcAck);
    let mut header = Header::new(opcode, responder.qpn(), Psn::new(draw.next_u32()));
    let has = opcode.info().headers;
    if has.contains(Headers::AETH) {
        header = header.with_aeth(aeth);
    }
    if has.contains(Headers::ATOMIC_ACK_ETH) {
        header = header.with_atomic_ack(draw.next_u64());
    }
    let full = opcode == Opcode::RcReadResponseMiddle;
    let data = some_bytes(draw, if full { MTU.bytes() } else { 0 });
    emit(header, &data)
}
