//! The message that an answer refers to.

/// The message that an MRA or a REJ answers (12.6.6, 12.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// A LAP in an MRA; no specific message in a REJ.
    Other,
    /// The reserved value.
    Reserved,
}

impl Answered {
    /// Decodes the top two bits of a byte; the others are reserved.
    pub(super) fn from_byte(byte: u8) -> Self {
        [Self::Req, Self::Rep, Self::Other, Self::Reserved][usize::from(byte >> 6)]
    }

    /// Encodes the value as the top two bits of a byte.
    pub(super) fn byte(self) -> u8 {
        (self as u8) << 6
    }
}
