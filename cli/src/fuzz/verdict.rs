//! What a peer may answer to a packet, and the rules of the specification that say so.

use std::fmt;

use urxe_proto::wire::NakCode;

/// What a peer answers to one packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An acknowledgement.
    Ack,
    /// All of a READ's data.
    Data(Vec<u8>),
    /// What an atomic found.
    Found(u64),
    /// A NAK.
    Nak(NakCode),
    /// No receive is there.
    NotReady,
    /// None of these.
    Strange(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack => write!(f, "ACK"),
            Self::Data(data) => write!(f, "READ response of {} bytes", data.len()),
            Self::Found(_) => write!(f, "ATOMIC response"),
            Self::Nak(code) => write!(f, "NAK {code:?}"),
            Self::NotReady => write!(f, "RNR NAK"),
            Self::Strange(what) => write!(f, "{what}"),
        }
    }
}

/// A rule, by what a packet does to it. Each has its section of the specification, volume 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    WrongIcrc,
    NoPacket,
    Version,
    OtherQueuePair,
    Partition,
    OtherTransport,
    GhostAnswer,
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
    /// What it says, and where.
    pub fn text(self) -> &'static str {
        match self {
            Self::WrongIcrc => "wrong ICRC: dropped (7.8.1, 9.6.1)",
            Self::NoPacket => "not the length of a packet: dropped (9.6.1)",
            Self::Version => "transport version not 0: dropped (9.6.1.1.1)",
            Self::OtherQueuePair => "another queue pair: dropped (9.6.1.1.2)",
            Self::Partition => "another partition: dropped (9.6.1.1.3)",
            Self::OtherTransport => "opcode of another transport: dropped (9.6.1.1.2)",
            Self::GhostAnswer => "answer to nothing that was asked: dropped (9.7.5.2.1)",
            Self::ReservedOpcode => {
                "reserved opcode: NAK invalid request, or dropped (9.9.3, 9.6.1)"
            }
            Self::Malformed => {
                "headers or pad incomplete: dropped, or NAK invalid request (9.6.1, 9.9.3)"
            }
            Self::Ahead => "PSN ahead: NAK PSN sequence (9.7.5.1.2)",
            Self::AheadAgain => "PSN ahead again: dropped (9.7.5.1.2)",
            Self::DuplicateMessage => "duplicate SEND or WRITE: ACK, not carried out (9.7.5.1.1)",
            Self::DuplicateRead => "duplicate READ: its data, or dropped (9.7.5.1.1)",
            Self::DuplicateAtomic => {
                "duplicate atomic: its old result, not carried out (9.7.5.1.1)"
            }
            Self::DuplicateOther => {
                "PSN of the past, not what was there: ACK, or dropped (9.7.5.1.1)"
            }
            Self::Sequence => "opcode out of sequence: NAK invalid request (9.7.4.1.2)",
            Self::PayloadLength => {
                "payload not as the opcode wants it: NAK invalid request (9.7.4.1.6)"
            }
            Self::TotalLength => "WRITE not as long as announced: NAK invalid request (9.7.4.1.6)",
            Self::TooLong => "more than 2^31 bytes: NAK invalid request (9.7.4.1.6)",
            Self::NoAccess => "no right to the memory: NAK remote access (9.7.4.1.5)",
            Self::Alignment => "atomic not aligned: NAK invalid request (9.4.5)",
            Self::ReceiveTooShort => "SEND longer than the receive: NAK invalid request (9.9.3)",
            Self::Invalidation => {
                "key cannot be invalidated: a NAK that ends the connection (9.4.1.1)"
            }
            Self::Optional => {
                "optional operation: carried out, or NAK invalid request (A19, 9.9.3)"
            }
            Self::InOrder => "request in order: carried out, and acknowledged if so asked (9.7)",
        }
    }
}

/// What the specification asks for a packet.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The rules that are concerned; of several answers any will do.
    pub rules: Vec<Rule>,
    /// What may be answered.
    pub(super) answers: Vec<Answer>,
    /// Any NAK that ends the connection may be answered.
    pub(super) any_end: bool,
    /// Whether nothing may be answered.
    pub silence: bool,
}

impl Asked {
    pub(super) fn silence(rule: Rule) -> Asked {
        Asked {
            rules: vec![rule],
            answers: Vec::new(),
            any_end: false,
            silence: true,
        }
    }

    pub(super) fn answer(rule: Rule, answers: impl Into<Vec<Answer>>) -> Asked {
        Asked {
            rules: vec![rule],
            answers: answers.into(),
            any_end: false,
            silence: false,
        }
    }

    pub(super) fn or_silence(mut self) -> Asked {
        self.silence = true;
        self
    }

    /// Whether these answers, in their order, are right. A NAK that ends the connection may come again.
    pub fn allows(&self, answers: &[Answer]) -> bool {
        let Some(first) = answers.first() else {
            return self.silence;
        };
        let ends = is_end(first);
        let right = self.answers.contains(first) || (ends && self.any_end);
        right && answers[1..].iter().all(|again| ends && again == first)
    }

    /// Whether an acknowledgement of what is done already may be the answer.
    pub fn may_acknowledge_again(&self) -> bool {
        self.answers.contains(&Answer::Ack) && self.rules != [Rule::InOrder]
    }

    /// Whether the next packet can be made only when the answer, if there is one, is known.
    pub fn decides_next(&self) -> bool {
        self.answers.contains(&Answer::NotReady)
    }

    /// Whether an answer must come.
    pub fn wants_answer(&self) -> bool {
        !self.silence
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.answers.iter().map(Answer::to_string).collect();
        if self.any_end {
            words.push("a NAK that ends the connection".to_owned());
        }
        if self.silence {
            words.push("nothing".to_owned());
        }
        write!(f, "{}", words.join(" or "))
    }
}

/// Whether an answer ends the connection.
pub fn is_end(answer: &Answer) -> bool {
    matches!(answer, Answer::Nak(code) if *code != NakCode::PsnSequence)
}
