//! What the dissector reports about a capture.

use std::time::Duration;

use urxe_proto::psn::Psn;
use urxe_proto::wire::ParseError;

/// The kind of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// The ICRC does not match the packet.
    WrongIcrc,
    /// A packet that no queue pair can accept.
    Malformed,
    /// A packet that its sender must not send.
    Rule,
    /// The fabric marked a packet, or an end asked its peer to slow down.
    Congestion,
    /// Packets that are not in the capture, or not yet.
    Gap,
    /// A packet that fills a gap.
    Late,
    Retransmission,
    /// A packet that the network duplicated.
    Copy,
    Nak,
    RnrNak,
    /// A READ or atomic whose response is missing.
    MissingResponse,
    /// A READ response that was captured before.
    RepeatedResponse,
    /// PSNs that do not continue: a queue pair number is used again.
    Restart,
    /// A connection manager's refusal.
    Reject,
    /// Requests without an acknowledgement at the end of the capture.
    Unacknowledged,
}

impl Kind {
    /// The name in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WrongIcrc => "wrong-icrc",
            Self::Malformed => "malformed",
            Self::Rule => "rule",
            Self::Congestion => "congestion",
            Self::Gap => "gap",
            Self::Late => "late",
            Self::Retransmission => "retransmission",
            Self::Copy => "copy",
            Self::Nak => "nak",
            Self::RnrNak => "rnr-nak",
            Self::MissingResponse => "missing-response",
            Self::RepeatedResponse => "repeated-response",
            Self::Restart => "restart",
            Self::Reject => "reject",
            Self::Unacknowledged => "unacknowledged",
        }
    }

    /// Whether an end violates the specification, or the packet was damaged.
    pub const fn is_fault(self) -> bool {
        matches!(self, Self::WrongIcrc | Self::Malformed | Self::Rule)
    }
}

/// A finding, about one packet or several consecutive ones.
#[derive(Clone, Debug)]
pub struct Finding {
    pub kind: Kind,
    /// The frame of the first packet.
    pub frame: u64,
    /// The time since the first frame.
    pub time: Duration,
    /// The index of the connection.
    pub connection: Option<usize>,
    /// The first PSN.
    pub psn: Option<Psn>,
    /// The number of PSNs.
    pub count: u32,
    pub text: String,
    /// The section of the specification.
    pub section: Option<&'static str>,
}

impl Finding {
    pub fn new(kind: Kind, frame: u64, time: Duration, text: impl Into<String>) -> Self {
        Self {
            kind,
            frame,
            time,
            connection: None,
            psn: None,
            count: 1,
            text: text.into(),
            section: None,
        }
    }

    pub fn at(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }

    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    pub fn section(mut self, section: &'static str) -> Self {
        self.section = Some(section);
        self
    }
}

/// Returns the section that a malformed packet violates.
pub fn section_of(error: &ParseError) -> &'static str {
    match error {
        ParseError::ReservedOpcode(_) => "9.2.1",
        ParseError::Truncated { .. } => "9.3",
        ParseError::UnexpectedPayload { .. } => "9.4",
        _ => "9.2",
    }
}
