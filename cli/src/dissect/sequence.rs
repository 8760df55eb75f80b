//! The rules for the packets of a message: order, payload lengths, and the length of a WRITE
//! (9.7.4.1.2, 9.7.4.1.6).

use urxe_proto::wire::{Header, Operation, Position};

/// The longest message (9.7.4.1.6).
const MAX_MESSAGE: u64 = 1 << 31;

/// A violated rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    pub text: String,
    pub section: &'static str,
}

fn violation(section: &'static str, text: String) -> Violation {
    Violation { text, section }
}

/// The message in progress between one requester and its responder.
#[derive(Debug, Default)]
pub enum Sequence {
    /// The capture lacks earlier packets: any packet may be next.
    #[default]
    Unknown,
    Between,
    Within(Message),
}

/// A message of several packets.
#[derive(Debug)]
pub struct Message {
    operation: Operation,
    /// The bytes of a WRITE that have not been sent; `None` for a SEND.
    left: Option<u64>,
}

impl Sequence {
    /// Takes the next request in the order of PSNs, and checks it. `mtu` is the path MTU, if known.
    pub fn next(&mut self, header: &Header, len: usize, mtu: Option<usize>) -> Vec<Violation> {
        let mut violations = Vec::new();
        self.check_order(header, &mut violations);
        check_length(header, len, mtu, &mut violations);
        self.advance(header, len, &mut violations);
        violations
    }

    fn check_order(&self, header: &Header, violations: &mut Vec<Violation>) {
        let info = header.bth.opcode.info();
        let starts = info.position.starts();
        let problem = match self {
            Self::Unknown => None,
            Self::Between if !starts => Some("without the start of a message".to_owned()),
            Self::Between => None,
            Self::Within(message) if starts => {
                Some(format!("within a {}", name(message.operation)))
            }
            Self::Within(message) if message.operation != info.operation => {
                Some(format!("within a {}", name(message.operation)))
            }
            Self::Within(_) => None,
        };
        if let Some(problem) = problem {
            violations.push(violation("9.7.4.1.2", format!("{} {problem}", info.name)));
        }
    }

    fn advance(&mut self, header: &Header, len: usize, violations: &mut Vec<Violation>) {
        let info = header.bth.opcode.info();
        let len = len as u64;
        let total = header.reth.map(|reth| u64::from(reth.length));
        let known = !matches!(self, Self::Unknown) || info.position.starts();
        let left = match (&*self, info.position.starts()) {
            (_, true) => total,
            (Self::Within(message), false) => message.left,
            _ => None,
        };
        let ends = info.position.ends();
        if info.operation == Operation::Write
            && let Some(left) = left
            && (len > left || (ends && len < left) || (!ends && len == left))
        {
            let position = if ends { "last" } else { "not the last" };
            violations.push(violation(
                "9.7.4.1.6",
                format!(
                    "{} has {len} bytes, {left} of the length in the RETH are left, and it is \
                     {position} packet",
                    info.name
                ),
            ));
        }
        *self = match (ends, known) {
            (true, _) => Self::Between,
            (false, false) => Self::Unknown,
            (false, true) => Self::Within(Message {
                operation: info.operation,
                left: left.map(|left| left.saturating_sub(len)),
            }),
        };
    }
}

fn check_length(header: &Header, len: usize, mtu: Option<usize>, violations: &mut Vec<Violation>) {
    let info = header.bth.opcode.info();
    if let Some(mtu) = mtu
        && !info.payload.accepts(len, mtu)
    {
        violations.push(violation(
            "9.7.4.1.6",
            format!("{} has {len} bytes at a path MTU of {mtu}", info.name),
        ));
    }
    let total = header.reth.map_or(0, |reth| u64::from(reth.length));
    if total > MAX_MESSAGE {
        violations.push(violation(
            "9.7.4.1.6",
            format!("{} of {total} bytes, more than 2^31", info.name),
        ));
    }
    if info.operation == Operation::Reserved {
        violations.push(violation("9.2.1", format!("{} is sent", info.name)));
    }
}

/// The name of an operation that has several packets.
fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Write => "WRITE",
        _ => "SEND",
    }
}

/// Whether the payload of such a packet is the path MTU.
pub fn has_full_mtu(position: Position) -> bool {
    matches!(position, Position::First | Position::Middle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_proto::ids::{Qpn, RKey};
    use urxe_proto::psn::Psn;
    use urxe_proto::wire::{Opcode, Reth};

    fn packet(opcode: Opcode) -> Header {
        Header::new(opcode, Qpn::new(7), Psn::new(0))
    }

    fn write(opcode: Opcode, length: u32) -> Header {
        packet(opcode).with_reth(Reth {
            addr: 0,
            rkey: RKey(1),
            length,
        })
    }

    /// Returns the sections that the last of these packets violates.
    fn sections(packets: &[(Header, usize)]) -> Vec<&'static str> {
        let mut sequence = Sequence::default();
        let mut last = Vec::new();
        for (header, len) in packets {
            last = sequence.next(header, *len, Some(1024));
        }
        last.iter().map(|violation| violation.section).collect()
    }

    #[test]
    fn complete_messages_are_valid() {
        let first = (write(Opcode::RcWriteFirst, 1025), 1024);
        let last = (packet(Opcode::RcWriteLast), 1);
        let send = (packet(Opcode::RcSendOnly), 0);
        assert!(sections(&[first]).is_empty());
        assert!(sections(&[first, last]).is_empty());
        assert!(sections(&[first, last, send]).is_empty());
        // The capture begins within a message.
        assert!(sections(&[(packet(Opcode::RcSendMiddle), 1024)]).is_empty());
        assert!(sections(&[last]).is_empty());
    }

    #[test]
    fn order_of_opcodes_is_checked() {
        let first = (packet(Opcode::RcSendFirst), 1024);
        let middle = (packet(Opcode::RcSendMiddle), 1024);
        let only = (packet(Opcode::RcSendOnly), 4);
        assert_eq!(sections(&[only, middle]), ["9.7.4.1.2"]);
        assert_eq!(sections(&[first, only]), ["9.7.4.1.2"]);
        let write = (packet(Opcode::RcWriteMiddle), 1024);
        assert_eq!(sections(&[first, write]), ["9.7.4.1.2"]);
    }

    #[test]
    fn lengths_are_checked() {
        assert_eq!(
            sections(&[(packet(Opcode::RcSendFirst), 1000)]),
            ["9.7.4.1.6"]
        );
        assert_eq!(
            sections(&[(packet(Opcode::RcSendOnly), 1025)]),
            ["9.7.4.1.6"]
        );
        let only = (write(Opcode::RcWriteOnly, 9), 8);
        assert_eq!(sections(&[only]), ["9.7.4.1.6"]);
        let first = (write(Opcode::RcWriteFirst, 1024), 1024);
        assert_eq!(sections(&[first]), ["9.7.4.1.6"]);
        let read = (write(Opcode::RcReadRequest, (1 << 31) + 1), 0);
        assert_eq!(sections(&[read]), ["9.7.4.1.6"]);
    }
}
