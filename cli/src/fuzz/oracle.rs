//! What the specification asks of a responder of a reliable connection: the judge.
//!
//! It is written down anew here, from the tables of chapter 9 and not from urxe's own responder, so that
//! urxe is one more peer to it. Where a packet breaks several rules, the answer to any of them will do:
//! the specification does not say in which order they are looked at. What comes before the PSN is looked
//! at has no answer at all, and hides the rest.

use urxe_proto::ids::{PKey, Qpn};
use urxe_proto::psn::Psn;
use urxe_proto::wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, Reth};

use super::connection::{Connection, Grant, MTU};
use super::verdict::{Answer, Asked, Rule, is_end};

/// A message that has begun.
#[derive(Clone, Copy, Debug)]
enum Begun {
    Send { received: u64 },
    Write { addr: u64, left: u64 },
}

/// A request that was carried out, to be repeated.
#[derive(Clone, Debug)]
pub struct Done {
    pub bytes: Vec<u8>,
    first: Psn,
    answer: Answer,
}

/// The peer's responder, as it should be.
pub struct Responder {
    qpn: Qpn,
    grant: Option<Grant>,
    expected: Psn,
    begun: Option<Begun>,
    /// A NAK for what was missing has been given.
    refused: bool,
    /// The latest requests that were carried out.
    pub done: Vec<Done>,
}

/// How many requests are remembered to be repeated. READs and atomics must be among the latest
/// [`super::connection::DEPTH`] of them to be answered.
const REMEMBERED: usize = 8;
/// The longest message (9.7.4.1.6).
const MAX_MESSAGE: u32 = 1 << 31;
/// The byte with the AckReq bit.
const ACK_REQ: usize = 8;
const RESPONSES: [Operation; 3] = [
    Operation::ReadResponse,
    Operation::Ack,
    Operation::AtomicAck,
];

impl Responder {
    pub fn new(connection: &Connection) -> Self {
        Responder {
            qpn: connection.qpn,
            grant: connection.grant,
            expected: connection.psn,
            begun: None,
            refused: false,
            done: Vec::new(),
        }
    }

    pub fn expected(&self) -> Psn {
        self.expected
    }

    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub fn grant(&self) -> Option<Grant> {
        self.grant
    }

    /// The message under way: a SEND, or a WRITE with so many bytes to come.
    pub fn under_way(&self) -> Option<Option<u64>> {
        self.begun.map(|begun| match begun {
            Begun::Send { .. } => None,
            Begun::Write { left, .. } => Some(left),
        })
    }

    /// What is asked for a packet, from the BTH to the pad. `memory` is what the grant should hold.
    pub fn ask(&self, bytes: &[u8], sealed: bool, memory: &[u8]) -> Asked {
        if !sealed {
            return Asked::silence(Rule::WrongIcrc);
        }
        if bytes.len() < Bth::LEN || !bytes.len().is_multiple_of(4) {
            return Asked::silence(Rule::NoPacket);
        }
        // Read apart: the parser stops at the first thing that it does not like.
        let word = |at: usize| u32::from_be_bytes([0, bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (dest, psn) = (Qpn::new(word(4)), Psn::new(word(8)));
        let pkey = PKey(u16::from_be_bytes([bytes[2], bytes[3]]));
        if bytes[1] & 0x0f != Bth::TRANSPORT_VERSION {
            return Asked::silence(Rule::Version);
        }
        if dest != self.qpn {
            return Asked::silence(Rule::OtherQueuePair);
        }
        if !PKey::DEFAULT.matches(pkey) {
            return Asked::silence(Rule::Partition);
        }
        // The top three bits are the transport; those of RC are zero (9.2.1).
        if bytes[0] >> 5 != 0 {
            return Asked::silence(Rule::OtherTransport);
        }
        let distance = psn.diff(self.expected);
        let invalid = || vec![Answer::Nak(NakCode::InvalidRequest)];
        let is_reserved = Opcode::from_u8(bytes[0])
            .is_none_or(|opcode| opcode.info().operation == Operation::Reserved);
        let packet = match Packet::parse(bytes) {
            Ok(packet) if !is_reserved => packet,
            _ => {
                let rule = match is_reserved {
                    true => Rule::ReservedOpcode,
                    false => Rule::Malformed,
                };
                let mut answers = invalid();
                answers.push(match distance {
                    1.. => Answer::Nak(NakCode::PsnSequence),
                    0 => Answer::Nak(NakCode::RemoteOperational),
                    _ => Answer::Ack,
                });
                return Asked::answer(rule, answers).or_silence();
            }
        };
        let operation = packet.header.bth.opcode.info().operation;
        if RESPONSES.contains(&operation) {
            return Asked::silence(Rule::GhostAnswer);
        }
        match distance {
            1.. if self.refused => Asked::silence(Rule::AheadAgain),
            1.. => Asked::answer(Rule::Ahead, [Answer::Nak(NakCode::PsnSequence)]),
            0 => self.ask_expected(&packet, memory),
            _ => self.ask_past(&packet, bytes, memory),
        }
    }

    /// What is asked for a request whose turn it is.
    fn ask_expected(&self, packet: &Packet<'_>, memory: &[u8]) -> Asked {
        let header = &packet.header;
        let info = header.bth.opcode.info();
        let mut broken = Vec::new();
        if self.breaks_sequence(packet) {
            broken.push(Rule::Sequence);
        }
        if !info.payload.accepts(packet.payload.len(), MTU.bytes()) {
            broken.push(Rule::PayloadLength);
        }
        match info.operation {
            Operation::Send => {
                let before = match self.begun {
                    Some(Begun::Send { received }) => received,
                    _ => 0,
                };
                let room = self
                    .grant
                    .map_or(u64::MAX, |grant| u64::from(grant.receive));
                if before + packet.payload.len() as u64 > room {
                    broken.push(Rule::ReceiveTooShort);
                }
                if info.headers.contains(Headers::IETH) {
                    broken.push(Rule::Invalidation);
                }
            }
            Operation::Write => {
                let left = match (&header.reth, self.begun) {
                    (Some(reth), _) => u64::from(reth.length),
                    (None, Some(Begun::Write { left, .. })) => left,
                    // Out of sequence.
                    (None, _) => u64::MAX,
                };
                let len = packet.payload.len() as u64;
                let fits = if info.position.ends() {
                    len == left
                } else {
                    len < left
                };
                if !fits {
                    broken.push(Rule::TotalLength);
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let addr = header.atomic.map_or(0, |atomic| atomic.addr);
                if !addr.is_multiple_of(8) {
                    broken.push(Rule::Alignment);
                }
            }
            _ => {}
        }
        if header.reth.is_some_and(|reth| reth.length > MAX_MESSAGE) {
            broken.push(Rule::TooLong);
        }
        if self.place(packet).is_none() {
            broken.push(Rule::NoAccess);
        }
        if matches!(info.operation, Operation::Flush | Operation::AtomicWrite) {
            broken.push(Rule::Optional);
        }
        if broken.is_empty() {
            return self.ask_in_order(packet, memory);
        }
        let answers: Vec<Answer> = broken
            .iter()
            .map(|rule| match rule {
                Rule::NoAccess => Answer::Nak(NakCode::RemoteAccess),
                _ => Answer::Nak(NakCode::InvalidRequest),
            })
            .collect();
        let optional = broken == [Rule::Optional];
        let mut asked = Asked::answer(broken[0], answers);
        asked.any_end = optional || broken.contains(&Rule::Invalidation);
        if optional {
            asked
                .answers
                .extend([Answer::Ack, Answer::Data(Vec::new())]);
        }
        // What needs a receive may be told that there is none.
        if info.operation == Operation::Send || header.imm.is_some() {
            asked.answers.push(Answer::NotReady);
        }
        asked.rules = broken;
        asked
    }

    fn ask_in_order(&self, packet: &Packet<'_>, memory: &[u8]) -> Asked {
        let header = &packet.header;
        let info = header.bth.opcode.info();
        let mut asked = match info.operation {
            Operation::ReadRequest => Asked::answer(Rule::InOrder, self.data_of(packet, memory)),
            Operation::CompareSwap | Operation::FetchAdd => {
                let found = self
                    .place(packet)
                    .map(|at| Answer::Found(word_at(memory, at)));
                Asked::answer(Rule::InOrder, found.into_iter().collect::<Vec<_>>())
            }
            _ if header.bth.ack_req => Asked::answer(Rule::InOrder, [Answer::Ack]),
            // Nobody forbids to acknowledge more than is asked for.
            _ => Asked::answer(Rule::InOrder, [Answer::Ack]).or_silence(),
        };
        let takes_receive = info.operation == Operation::Send && info.position.starts();
        if takes_receive || header.imm.is_some() {
            asked.answers.push(Answer::NotReady);
        }
        // How long its receives are, and how many, only a peer that grants something says.
        if self.grant.is_none() && info.operation == Operation::Send {
            asked.answers.push(Answer::Nak(NakCode::InvalidRequest));
        }
        asked
    }

    fn breaks_sequence(&self, packet: &Packet<'_>) -> bool {
        let info = packet.header.bth.opcode.info();
        match (self.begun, info.position.starts()) {
            (None, starts) => !starts,
            (Some(_), true) => true,
            (Some(Begun::Send { .. }), false) => info.operation != Operation::Send,
            (Some(Begun::Write { .. }), false) => info.operation != Operation::Write,
        }
    }

    /// Where in the grant a request's memory begins; `None` when it is not all there. What touches
    /// nothing has a place anywhere.
    fn place(&self, packet: &Packet<'_>) -> Option<usize> {
        let header = &packet.header;
        let (addr, rkey, len) = match (&header.reth, &header.atomic) {
            (Some(Reth { length: 0, .. }), _) | (None, None) => return Some(0),
            (Some(reth), _) => (reth.addr, reth.rkey, u64::from(reth.length)),
            (_, Some(atomic)) => (atomic.addr, atomic.rkey, 8),
        };
        let grant = self.grant.filter(|grant| grant.rkey == rkey)?;
        let start = addr.checked_sub(grant.addr)?;
        let end = start.checked_add(len)?;
        (end <= u64::from(grant.len)).then_some(start as usize)
    }

    /// The answer to a READ.
    fn data_of(&self, packet: &Packet<'_>, memory: &[u8]) -> Vec<Answer> {
        let len = packet.header.reth.map_or(0, |reth| reth.length as usize);
        let data = self.place(packet).and_then(|at| memory.get(at..at + len));
        data.map(|data| Answer::Data(data.to_vec()))
            .into_iter()
            .collect()
    }

    /// What is asked for a request of the past.
    fn ask_past(&self, packet: &Packet<'_>, bytes: &[u8], memory: &[u8]) -> Asked {
        let header = &packet.header;
        // Whether an answer is asked for does not matter.
        let plain = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[ACK_REQ] &= 0x7f;
            bytes
        };
        let asked = plain(bytes);
        let same = self.done.iter().any(|done| plain(&done.bytes) == asked);
        let saved = self
            .done
            .iter()
            .rev()
            .find(|done| done.first == header.bth.psn);
        let found = saved
            .map(|done| &done.answer)
            .filter(|answer| matches!(answer, Answer::Found(_)));
        match header.bth.opcode.info().operation {
            Operation::Send | Operation::Write if same && header.bth.ack_req => {
                Asked::answer(Rule::DuplicateMessage, [Answer::Ack])
            }
            // The data of a READ that is asked for again are those of now.
            Operation::ReadRequest => {
                let rule = if same {
                    Rule::DuplicateRead
                } else {
                    Rule::DuplicateOther
                };
                Asked::answer(rule, self.data_of(packet, memory)).or_silence()
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let rule = if same {
                    Rule::DuplicateAtomic
                } else {
                    Rule::DuplicateOther
                };
                Asked::answer(rule, found.cloned().into_iter().collect::<Vec<_>>()).or_silence()
            }
            _ => Asked::answer(
                Rule::DuplicateOther,
                [Answer::Ack, Answer::Data(Vec::new())],
            )
            .or_silence(),
        }
    }

    /// Takes note of what was answered, as was asked. Says whether the connection lives on.
    pub fn note(
        &mut self,
        asked: &Asked,
        bytes: &[u8],
        answers: &[Answer],
        memory: &mut [u8],
    ) -> bool {
        let optional = asked.rules == [Rule::Optional];
        match answers.first() {
            Some(answer) if is_end(answer) => return false,
            Some(Answer::NotReady | Answer::Nak(NakCode::PsnSequence)) => self.refused = true,
            Some(answer) if asked.rules == [Rule::InOrder] || optional => {
                self.carry_out(bytes, answer.clone(), memory);
            }
            None if asked.rules == [Rule::InOrder] => self.carry_out(bytes, Answer::Ack, memory),
            _ => {}
        }
        true
    }

    fn carry_out(&mut self, bytes: &[u8], answer: Answer, memory: &mut [u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        let header = &packet.header;
        let info = header.bth.opcode.info();
        let len = packet.payload.len() as u64;
        let mut packets = 1;
        match info.operation {
            Operation::Send => {
                let before = match self.begun {
                    Some(Begun::Send { received }) => received,
                    _ => 0,
                };
                let received = before + len;
                self.begun = (!info.position.ends()).then_some(Begun::Send { received });
            }
            Operation::Write => {
                let write = match (self.begun, header.reth) {
                    (_, Some(reth)) => (reth.addr, u64::from(reth.length)),
                    (Some(Begun::Write { addr, left }), None) => (addr, left),
                    _ => (0, 0),
                };
                let (addr, left) = write;
                self.store(memory, addr, packet.payload);
                let left = left.saturating_sub(len);
                let addr = addr.wrapping_add(len);
                self.begun = (!info.position.ends()).then_some(Begun::Write { addr, left });
            }
            Operation::AtomicWrite => {
                let addr = header.reth.map_or(0, |reth| reth.addr);
                self.store(memory, addr, packet.payload);
            }
            Operation::ReadRequest => {
                let len = header.reth.map_or(0, |reth| reth.length);
                packets = len.div_ceil(MTU.bytes() as u32).max(1);
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                if let (Some(atomic), Answer::Found(found)) = (header.atomic, &answer) {
                    let new = match info.operation {
                        Operation::FetchAdd => found.wrapping_add(atomic.swap_or_add),
                        _ if *found == atomic.compare => atomic.swap_or_add,
                        _ => *found,
                    };
                    self.store(memory, atomic.addr, &new.to_ne_bytes());
                }
            }
            _ => {}
        }
        let first = self.expected;
        self.expected = first + packets;
        self.refused = false;
        if self.done.len() == REMEMBERED {
            self.done.remove(0);
        }
        let bytes = bytes.to_vec();
        self.done.push(Done {
            bytes,
            first,
            answer,
        });
    }

    fn store(&self, memory: &mut [u8], addr: u64, data: &[u8]) {
        let start = self.grant.and_then(|grant| addr.checked_sub(grant.addr));
        let room = start.and_then(|start| memory.get_mut(start as usize..)?.get_mut(..data.len()));
        if let Some(room) = room {
            room.copy_from_slice(data);
        }
    }
}

/// An atomic works on 8 bytes in the order of the peer, which is ours unless it is of another kind.
fn word_at(memory: &[u8], at: usize) -> u64 {
    let bytes = memory.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::packets;
    use urxe_proto::ids::RKey;
    use urxe_proto::wire::{AtomicEth, Header, Opcode};

    const GRANT: Grant = Grant {
        addr: 0x1000,
        rkey: RKey(7),
        len: 64,
        receive: 32,
    };
    const EVERYTHING: Reth = Reth {
        addr: GRANT.addr,
        rkey: GRANT.rkey,
        length: GRANT.len,
    };

    fn responder() -> Responder {
        Responder::new(&Connection {
            own_qpn: Qpn::new(2),
            qpn: Qpn::new(3),
            psn: Psn::new(0xff_ffff),
            grant: Some(GRANT),
            ids: None,
        })
    }

    fn packet(header: Header, payload: &[u8]) -> Vec<u8> {
        let packet = Packet { header, payload };
        let mut bytes = vec![0; packet.len()];
        packet.emit(&mut bytes);
        bytes
    }

    #[test]
    fn request_without_a_right_is_refused_by_its_nak_and_nothing_else() {
        let responder = responder();
        let memory = [0; GRANT.len as usize];
        let rkey = RKey(8);
        let bytes = packets::write(&responder, Reth { rkey, ..EVERYTHING }, &memory);
        let asked = responder.ask(&bytes, true, &memory);
        let nak = Answer::Nak(NakCode::RemoteAccess);
        // A NAK that ends the connection may be repeated.
        assert!(asked.allows(std::slice::from_ref(&nak)) && asked.allows(&[nak.clone(), nak]));
        for wrong in [
            &[][..],
            &[Answer::Ack],
            &[Answer::Nak(NakCode::InvalidRequest)],
            &[Answer::NotReady],
        ] {
            assert!(!asked.allows(wrong), "{wrong:?}");
        }
        let asked = responder.ask(&bytes, false, &memory);
        assert!(asked.allows(&[]) && !asked.allows(&[Answer::Ack]));
    }

    #[test]
    fn atomic_that_comes_twice_is_carried_out_once() {
        let mut responder = responder();
        let mut memory = [0; GRANT.len as usize];
        let header = Header::new(Opcode::RcFetchAdd, responder.qpn(), responder.expected());
        let atomic = AtomicEth {
            addr: GRANT.addr + 8,
            rkey: GRANT.rkey,
            swap_or_add: 5,
            compare: 0,
        };
        let bytes = packet(header.with_atomic(atomic), &[]);
        let asked = responder.ask(&bytes, true, &memory);
        let found = [Answer::Found(0)];
        assert!(asked.allows(&found) && !asked.allows(&[Answer::Found(5)]));
        assert!(responder.note(&asked, &bytes, &found, &mut memory));
        assert_eq!(word_at(&memory, 8), 5);
        assert_eq!(responder.expected(), Psn::new(0));

        let asked = responder.ask(&bytes, true, &memory);
        assert_eq!(asked.rules, [Rule::DuplicateAtomic]);
        assert!(asked.allows(&found) && !asked.allows(&[Answer::Found(5)]));
        assert!(responder.note(&asked, &bytes, &found, &mut memory));
        assert_eq!(word_at(&memory, 8), 5);
    }

    #[test]
    fn what_is_missing_is_asked_for_once() {
        let mut responder = responder();
        let mut memory = [0; GRANT.len as usize];
        let psn = responder.expected() + 3;
        let header = Header::new(Opcode::RcReadRequest, responder.qpn(), psn);
        let bytes = packet(header.with_reth(EVERYTHING), &[]);
        let nak = [Answer::Nak(NakCode::PsnSequence)];
        let asked = responder.ask(&bytes, true, &memory);
        assert!(asked.allows(&nak) && !asked.allows(&[]));
        assert!(responder.note(&asked, &bytes, &nak, &mut memory));
        let asked = responder.ask(&bytes, true, &memory);
        assert!(asked.allows(&[]) && !asked.allows(&nak));
    }

    #[test]
    fn read_brings_what_was_written() {
        let mut responder = responder();
        let mut memory = [0; GRANT.len as usize];
        let data = [9; GRANT.len as usize];
        let bytes = packets::write(&responder, EVERYTHING, &data);
        let asked = responder.ask(&bytes, true, &memory);
        assert!(responder.note(&asked, &bytes, &[Answer::Ack], &mut memory));
        let bytes = packets::read(&responder, EVERYTHING);
        let asked = responder.ask(&bytes, true, &memory);
        assert!(asked.allows(&[Answer::Data(data.to_vec())]));
        assert!(!asked.allows(&[Answer::Data(vec![0; data.len()])]));
    }
}
