//! The responses that a peer may give to a packet, and the rules of the specification for them.

use std::fmt;

use urxe_proto::wire::NakCode;

/// A peer's response to a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// An ACK.
    Ack,
    /// The complete data of a READ.
    Read(Vec<u8>),
    /// The original value in an atomic response.
    AtomicAck(u64),
    /// A NAK.
    Nak(NakCode),
    /// An RNR NAK.
    RnrNak,
    /// Any other response.
    Other(String),
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack => write!(f, "ACK"),
            Self::Read(data) => write!(f, "READ response of {} bytes", data.len()),
            Self::AtomicAck(_) => write!(f, "ATOMIC response"),
            Self::Nak(code) => write!(f, "NAK {code:?}"),
            Self::RnrNak => write!(f, "RNR NAK"),
            Self::Other(what) => write!(f, "{what}"),
        }
    }
}

/// A rule of the specification, volume 1, named for the packet that it applies to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    WrongIcrc,
    NoPacket,
    Version,
    OtherQueuePair,
    Partition,
    OtherTransport,
    UnsolicitedResponse,
    ReservedOpcode,
    Malformed,
    Ahead,
    AheadAgain,
    DuplicateMessage,
    DuplicateRead,
    DuplicateAtomic,
    DuplicateOther,
    Sequence,
    PayloadLength,
    TotalLength,
    TooLong,
    NoAccess,
    Alignment,
    ReceiveTooShort,
    Invalidation,
    Optional,
    InOrder,
}

impl Rule {
    /// Returns the rule's text and sections.
    pub fn text(self) -> &'static str {
        match self {
            Self::WrongIcrc => "wrong ICRC: dropped (7.8.1, 9.6.1)",
            Self::NoPacket => "invalid packet length: dropped (9.6.1)",
            Self::Version => "transport version not 0: dropped (9.6.1.1.1)",
            Self::OtherQueuePair => "another queue pair: dropped (9.6.1.1.2)",
            Self::Partition => "another partition: dropped (9.6.1.1.3)",
            Self::OtherTransport => "opcode of another transport: dropped (9.6.1.1.2)",
            Self::UnsolicitedResponse => "response without a request: dropped (9.7.5.2.1)",
            Self::ReservedOpcode => {
                "reserved opcode: NAK invalid request, or dropped (9.9.3, 9.6.1)"
            }
            Self::Malformed => {
                "headers or pad incomplete: dropped, or NAK invalid request (9.6.1, 9.9.3)"
            }
            Self::Ahead => "PSN ahead: NAK PSN sequence error (9.7.5.1.2)",
            Self::AheadAgain => "PSN ahead after the NAK: dropped (9.7.5.1.2)",
            Self::DuplicateMessage => "duplicate SEND or WRITE: ACK, not executed (9.7.5.1.1)",
            Self::DuplicateRead => "duplicate READ: its data, or dropped (9.7.5.1.1)",
            Self::DuplicateAtomic => "duplicate atomic: its saved result, not executed (9.7.5.1.1)",
            Self::DuplicateOther => {
                "PSN of the past, but another request: ACK, or dropped (9.7.5.1.1)"
            }
            Self::Sequence => "opcode out of sequence: NAK invalid request (9.7.4.1.2)",
            Self::PayloadLength => {
                "payload length invalid for the opcode: NAK invalid request (9.7.4.1.6)"
            }
            Self::TotalLength => {
                "WRITE length not that of its RETH: NAK invalid request (9.7.4.1.6)"
            }
            Self::TooLong => "more than 2^31 bytes: NAK invalid request (9.7.4.1.6)",
            Self::NoAccess => "no access to the memory: NAK remote access (9.7.4.1.5)",
            Self::Alignment => "atomic not aligned: NAK invalid request (9.4.5)",
            Self::ReceiveTooShort => "SEND longer than the receive: NAK invalid request (9.9.3)",
            Self::Invalidation => "key cannot be invalidated: a fatal NAK (9.4.1.1)",
            Self::Optional => "optional operation: executed, or NAK invalid request (A19, 9.9.3)",
            Self::InOrder => "request in order: executed, and acknowledged on request (9.7)",
        }
    }
}

/// The responses that the specification allows for a packet.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// The rules that apply. Any response that one of them allows is right.
    pub rules: Vec<Rule>,
    /// The allowed responses.
    pub(super) responses: Vec<Response>,
    /// Whether any NAK that ends the connection is allowed.
    pub(super) any_fatal: bool,
    /// Whether no response is allowed.
    pub silence: bool,
}

impl Allowed {
    pub(super) fn silence(rule: Rule) -> Allowed {
        Allowed {
            rules: vec![rule],
            responses: Vec::new(),
            any_fatal: false,
            silence: true,
        }
    }

    pub(super) fn responses(rule: Rule, responses: impl Into<Vec<Response>>) -> Allowed {
        Allowed {
            rules: vec![rule],
            responses: responses.into(),
            any_fatal: false,
            silence: false,
        }
    }

    pub(super) fn or_silence(mut self) -> Allowed {
        self.silence = true;
        self
    }

    /// Returns whether this sequence of responses is right. A fatal NAK may be repeated.
    pub fn allows(&self, responses: &[Response]) -> bool {
        let Some(first) = responses.first() else {
            return self.silence;
        };
        let ends = is_fatal(first);
        let right = self.responses.contains(first) || (ends && self.any_fatal);
        right
            && responses[1..]
                .iter()
                .all(|repeated| ends && repeated == first)
    }

    /// Returns whether the response may be an ACK of an earlier request.
    pub fn allows_repeated_ack(&self) -> bool {
        self.responses.contains(&Response::Ack) && self.rules != [Rule::InOrder]
    }

    /// Returns whether the response, even an optional one, determines the next packet.
    pub fn determines_next(&self) -> bool {
        self.responses.contains(&Response::RnrNak)
    }

    /// Returns whether a response is required.
    pub fn requires_response(&self) -> bool {
        !self.silence
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.responses.iter().map(Response::to_string).collect();
        if self.any_fatal {
            words.push("a fatal NAK".to_owned());
        }
        if self.silence {
            words.push("nothing".to_owned());
        }
        write!(f, "{}", words.join(" or "))
    }
}

/// Returns whether the response ends the connection.
pub fn is_fatal(response: &Response) -> bool {
    matches!(response, Response::Nak(code) if *code != NakCode::PsnSequence)
}
