//! The responses that the specification requires of a reliable connection's responder.
//!
//! This model follows the tables of chapter 9 and shares no code with urxe's own responder, so urxe
//! is tested like any other peer. If a packet breaks several rules, the response to any of them is
//! right, because the specification does not define the order of the checks. The checks before that
//! of the PSN drop the packet silently.

use urxe_proto::ids::{PKey, Qpn};
use urxe_proto::psn::Psn;
use urxe_proto::wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, Reth};

use super::connection::{Connection, Grant, MTU};
use super::verdict::{Allowed, Response, Rule, is_fatal};

/// A message of which the last packet has not arrived.
#[derive(Clone, Copy, Debug)]
enum Message {
    Send { received: u64 },
    Write { addr: u64, left: u64 },
}

/// An executed request, which may be sent again as a duplicate.
#[derive(Clone, Debug)]
pub struct Executed {
    pub bytes: Vec<u8>,
    first: Psn,
    response: Response,
}

/// A model of the peer's responder.
pub struct Responder {
    qpn: Qpn,
    grant: Option<Grant>,
    expected: Psn,
    message: Option<Message>,
    /// Whether a NAK was sent for the gap at the expected PSN.
    nak_sent: bool,
    /// The latest executed requests.
    pub executed: Vec<Executed>,
}

/// The number of requests to remember for duplicates. The peer must respond to READs and atomics
/// only among the latest [`super::connection::DEPTH`] of them.
const HISTORY: usize = 8;
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
            message: None,
            nak_sent: false,
            executed: Vec::new(),
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

    /// Returns the message of which the last packet has not arrived, if there is one: `Some(None)`
    /// for a SEND, and the remaining bytes for a WRITE.
    pub fn message_in_progress(&self) -> Option<Option<u64>> {
        self.message.map(|message| match message {
            Message::Send { .. } => None,
            Message::Write { left, .. } => Some(left),
        })
    }

    /// Returns the allowed responses to a packet. `memory` is the expected content of the grant.
    pub fn allowed_responses(&self, bytes: &[u8], valid_icrc: bool, memory: &[u8]) -> Allowed {
        if !valid_icrc {
            return Allowed::silence(Rule::WrongIcrc);
        }
        if bytes.len() < Bth::LEN || !bytes.len().is_multiple_of(4) {
            return Allowed::silence(Rule::NoPacket);
        }
        // Read without the parser, which stops at the first invalid field.
        let word = |at: usize| u32::from_be_bytes([0, bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (dest, psn) = (Qpn::new(word(4)), Psn::new(word(8)));
        let pkey = PKey(u16::from_be_bytes([bytes[2], bytes[3]]));
        if bytes[1] & 0x0f != Bth::TRANSPORT_VERSION {
            return Allowed::silence(Rule::Version);
        }
        if dest != self.qpn {
            return Allowed::silence(Rule::OtherQueuePair);
        }
        if !PKey::DEFAULT.matches(pkey) {
            return Allowed::silence(Rule::Partition);
        }
        // The top three bits are the transport; those of RC are zero (9.2.1).
        if bytes[0] >> 5 != 0 {
            return Allowed::silence(Rule::OtherTransport);
        }
        let distance = psn.diff(self.expected);
        let invalid = || vec![Response::Nak(NakCode::InvalidRequest)];
        let is_reserved = Opcode::from_u8(bytes[0])
            .is_none_or(|opcode| opcode.info().operation == Operation::Reserved);
        let packet = match Packet::parse(bytes) {
            Ok(packet) if !is_reserved => packet,
            _ => {
                let rule = match is_reserved {
                    true => Rule::ReservedOpcode,
                    false => Rule::Malformed,
                };
                let mut responses = invalid();
                responses.push(match distance {
                    1.. => Response::Nak(NakCode::PsnSequence),
                    0 => Response::Nak(NakCode::RemoteOperational),
                    _ => Response::Ack,
                });
                return Allowed::responses(rule, responses).or_silence();
            }
        };
        let operation = packet.header.bth.opcode.info().operation;
        if RESPONSES.contains(&operation) {
            return Allowed::silence(Rule::UnsolicitedResponse);
        }
        match distance {
            1.. if self.nak_sent => Allowed::silence(Rule::AheadAgain),
            1.. => Allowed::responses(Rule::Ahead, [Response::Nak(NakCode::PsnSequence)]),
            0 => self.allowed_expected(&packet, memory),
            _ => self.allowed_duplicate(&packet, bytes, memory),
        }
    }

    /// Returns the allowed responses to a request with the expected PSN.
    fn allowed_expected(&self, packet: &Packet<'_>, memory: &[u8]) -> Allowed {
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
                let before = match self.message {
                    Some(Message::Send { received }) => received,
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
                let left = match (&header.reth, self.message) {
                    (Some(reth), _) => u64::from(reth.length),
                    (None, Some(Message::Write { left, .. })) => left,
                    // The packet is out of sequence, so the length does not matter.
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
            return self.allowed_in_order(packet, memory);
        }
        let responses: Vec<Response> = broken
            .iter()
            .map(|rule| match rule {
                Rule::NoAccess => Response::Nak(NakCode::RemoteAccess),
                _ => Response::Nak(NakCode::InvalidRequest),
            })
            .collect();
        let optional = broken == [Rule::Optional];
        let mut allowed = Allowed::responses(broken[0], responses);
        allowed.any_fatal = optional || broken.contains(&Rule::Invalidation);
        if optional {
            allowed
                .responses
                .extend([Response::Ack, Response::Read(Vec::new())]);
        }
        // A request that consumes a receive may get an RNR NAK.
        if info.operation == Operation::Send || header.imm.is_some() {
            allowed.responses.push(Response::RnrNak);
        }
        allowed.rules = broken;
        allowed
    }

    fn allowed_in_order(&self, packet: &Packet<'_>, memory: &[u8]) -> Allowed {
        let header = &packet.header;
        let info = header.bth.opcode.info();
        let mut allowed = match info.operation {
            Operation::ReadRequest => {
                Allowed::responses(Rule::InOrder, self.data_of(packet, memory))
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let found = self
                    .place(packet)
                    .map(|at| Response::AtomicAck(word_at(memory, at)));
                Allowed::responses(Rule::InOrder, found.into_iter().collect::<Vec<_>>())
            }
            _ if header.bth.ack_req => Allowed::responses(Rule::InOrder, [Response::Ack]),
            // A responder may acknowledge more often than requested.
            _ => Allowed::responses(Rule::InOrder, [Response::Ack]).or_silence(),
        };
        let takes_receive = info.operation == Operation::Send && info.position.starts();
        if takes_receive || header.imm.is_some() {
            allowed.responses.push(Response::RnrNak);
        }
        // Without a grant the number and size of the peer's receives are unknown.
        if self.grant.is_none() && info.operation == Operation::Send {
            allowed
                .responses
                .push(Response::Nak(NakCode::InvalidRequest));
        }
        allowed
    }

    fn breaks_sequence(&self, packet: &Packet<'_>) -> bool {
        let info = packet.header.bth.opcode.info();
        match (self.message, info.position.starts()) {
            (None, starts) => !starts,
            (Some(_), true) => true,
            (Some(Message::Send { .. }), false) => info.operation != Operation::Send,
            (Some(Message::Write { .. }), false) => info.operation != Operation::Write,
        }
    }

    /// Returns the offset of a request's memory in the grant, or `None` if it is not inside. A
    /// request without data is always inside.
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

    /// Returns the response to a READ.
    fn data_of(&self, packet: &Packet<'_>, memory: &[u8]) -> Vec<Response> {
        let len = packet.header.reth.map_or(0, |reth| reth.length as usize);
        let data = self.place(packet).and_then(|at| memory.get(at..at + len));
        data.map(|data| Response::Read(data.to_vec()))
            .into_iter()
            .collect()
    }

    /// Returns the allowed responses to a request with a PSN before the expected one.
    fn allowed_duplicate(&self, packet: &Packet<'_>, bytes: &[u8], memory: &[u8]) -> Allowed {
        let header = &packet.header;
        // Duplicates are compared without the AckReq bit.
        let plain = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[ACK_REQ] &= 0x7f;
            bytes
        };
        let allowed = plain(bytes);
        let same = self
            .executed
            .iter()
            .any(|executed| plain(&executed.bytes) == allowed);
        let saved = self
            .executed
            .iter()
            .rev()
            .find(|executed| executed.first == header.bth.psn);
        let found = saved
            .map(|executed| &executed.response)
            .filter(|response| matches!(response, Response::AtomicAck(_)));
        match header.bth.opcode.info().operation {
            Operation::Send | Operation::Write if same && header.bth.ack_req => {
                Allowed::responses(Rule::DuplicateMessage, [Response::Ack])
            }
            // A duplicate READ returns the current data.
            Operation::ReadRequest => {
                let rule = if same {
                    Rule::DuplicateRead
                } else {
                    Rule::DuplicateOther
                };
                Allowed::responses(rule, self.data_of(packet, memory)).or_silence()
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let rule = if same {
                    Rule::DuplicateAtomic
                } else {
                    Rule::DuplicateOther
                };
                Allowed::responses(rule, found.cloned().into_iter().collect::<Vec<_>>())
                    .or_silence()
            }
            _ => Allowed::responses(
                Rule::DuplicateOther,
                [Response::Ack, Response::Read(Vec::new())],
            )
            .or_silence(),
        }
    }

    /// Updates the model after allowed responses. Returns whether the connection continues.
    pub fn apply(
        &mut self,
        allowed: &Allowed,
        bytes: &[u8],
        responses: &[Response],
        memory: &mut [u8],
    ) -> bool {
        let optional = allowed.rules == [Rule::Optional];
        match responses.first() {
            Some(response) if is_fatal(response) => return false,
            Some(Response::RnrNak | Response::Nak(NakCode::PsnSequence)) => self.nak_sent = true,
            Some(response) if allowed.rules == [Rule::InOrder] || optional => {
                self.execute(bytes, response.clone(), memory);
            }
            None if allowed.rules == [Rule::InOrder] => self.execute(bytes, Response::Ack, memory),
            _ => {}
        }
        true
    }

    fn execute(&mut self, bytes: &[u8], response: Response, memory: &mut [u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        let header = &packet.header;
        let info = header.bth.opcode.info();
        let len = packet.payload.len() as u64;
        let mut packets = 1;
        match info.operation {
            Operation::Send => {
                let before = match self.message {
                    Some(Message::Send { received }) => received,
                    _ => 0,
                };
                let received = before + len;
                self.message = (!info.position.ends()).then_some(Message::Send { received });
            }
            Operation::Write => {
                let write = match (self.message, header.reth) {
                    (_, Some(reth)) => (reth.addr, u64::from(reth.length)),
                    (Some(Message::Write { addr, left }), None) => (addr, left),
                    _ => (0, 0),
                };
                let (addr, left) = write;
                self.store(memory, addr, packet.payload);
                let left = left.saturating_sub(len);
                let addr = addr.wrapping_add(len);
                self.message = (!info.position.ends()).then_some(Message::Write { addr, left });
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
                if let (Some(atomic), Response::AtomicAck(found)) = (header.atomic, &response) {
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
        self.nak_sent = false;
        if self.executed.len() == HISTORY {
            self.executed.remove(0);
        }
        let bytes = bytes.to_vec();
        self.executed.push(Executed {
            bytes,
            first,
            response,
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

/// Returns 8 bytes in native order. The peer is assumed to have the same byte order.
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
    const WHOLE: Reth = Reth {
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
    fn access_violation_gets_the_remote_access_nak() {
        let responder = responder();
        let memory = [0; GRANT.len as usize];
        let rkey = RKey(8);
        let bytes = packets::write(&responder, Reth { rkey, ..WHOLE }, &memory);
        let allowed = responder.allowed_responses(&bytes, true, &memory);
        let nak = Response::Nak(NakCode::RemoteAccess);
        // A fatal NAK may be repeated.
        assert!(allowed.allows(std::slice::from_ref(&nak)) && allowed.allows(&[nak.clone(), nak]));
        for wrong in [
            &[][..],
            &[Response::Ack],
            &[Response::Nak(NakCode::InvalidRequest)],
            &[Response::RnrNak],
        ] {
            assert!(!allowed.allows(wrong), "{wrong:?}");
        }
        let allowed = responder.allowed_responses(&bytes, false, &memory);
        assert!(allowed.allows(&[]) && !allowed.allows(&[Response::Ack]));
    }

    #[test]
    fn duplicate_atomic_is_executed_once() {
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
        let allowed = responder.allowed_responses(&bytes, true, &memory);
        let found = [Response::AtomicAck(0)];
        assert!(allowed.allows(&found) && !allowed.allows(&[Response::AtomicAck(5)]));
        assert!(responder.apply(&allowed, &bytes, &found, &mut memory));
        assert_eq!(word_at(&memory, 8), 5);
        assert_eq!(responder.expected(), Psn::new(0));

        let allowed = responder.allowed_responses(&bytes, true, &memory);
        assert_eq!(allowed.rules, [Rule::DuplicateAtomic]);
        assert!(allowed.allows(&found) && !allowed.allows(&[Response::AtomicAck(5)]));
        assert!(responder.apply(&allowed, &bytes, &found, &mut memory));
        assert_eq!(word_at(&memory, 8), 5);
    }

    #[test]
    fn gap_gets_one_nak() {
        let mut responder = responder();
        let mut memory = [0; GRANT.len as usize];
        let psn = responder.expected() + 3;
        let header = Header::new(Opcode::RcReadRequest, responder.qpn(), psn);
        let bytes = packet(header.with_reth(WHOLE), &[]);
        let nak = [Response::Nak(NakCode::PsnSequence)];
        let allowed = responder.allowed_responses(&bytes, true, &memory);
        assert!(allowed.allows(&nak) && !allowed.allows(&[]));
        assert!(responder.apply(&allowed, &bytes, &nak, &mut memory));
        let allowed = responder.allowed_responses(&bytes, true, &memory);
        assert!(allowed.allows(&[]) && !allowed.allows(&nak));
    }

    #[test]
    fn read_returns_the_written_data() {
        let mut responder = responder();
        let mut memory = [0; GRANT.len as usize];
        let data = [9; GRANT.len as usize];
        let bytes = packets::write(&responder, WHOLE, &data);
        let allowed = responder.allowed_responses(&bytes, true, &memory);
        assert!(responder.apply(&allowed, &bytes, &[Response::Ack], &mut memory));
        let bytes = packets::read(&responder, WHOLE);
        let allowed = responder.allowed_responses(&bytes, true, &memory);
        assert!(allowed.allows(&[Response::Read(data.to_vec())]));
        assert!(!allowed.allows(&[Response::Read(vec![0; data.len()])]));
    }
}
