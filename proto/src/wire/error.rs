//! The errors of parsing.

use super::opcode::Opcode;

/// The granularity of packet lengths, in bytes (9.2).
pub(super) const ALIGNMENT: usize = 4;

/// The rule that a malformed packet violates.
///
/// Such packets are dropped silently (9.6.1), because the queue pair to answer is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The BTH is incomplete.
    #[error("{have} bytes are too short for a BTH, which takes 12")]
    TooShort {
        /// The number of bytes.
        have: usize,
    },
    /// The transport header version is not 0 (9.2).
    #[error("the transport header has version {0}, not 0")]
    TransportVersion(u8),
    /// The opcode is reserved, or its transport is not supported (9.2.1).
    #[error("the opcode {0:#04x} is reserved or of an unsupported transport")]
    ReservedOpcode(u8),
    /// The length is not a multiple of 4 (9.2).
    #[error("the length of {0} bytes is not a multiple of {ALIGNMENT}")]
    Unaligned(usize),
    /// An extended header is incomplete (9.3).
    #[error("{opcode}: {have} bytes are too short for the {header}, which takes {need}")]
    Truncated {
        /// The opcode.
        opcode: Opcode,
        /// The header.
        header: &'static str,
        /// The length of the header, in bytes.
        need: usize,
        /// The bytes left for it.
        have: usize,
    },
    /// The pad is longer than the bytes after the headers (9.2).
    #[error("{opcode}: a pad of {pad} bytes in {have} bytes of payload")]
    Pad {
        /// The opcode.
        opcode: Opcode,
        /// The pad count.
        pad: u8,
        /// The bytes after the headers.
        have: usize,
    },
    /// The packet has a payload, but its opcode permits none (9.4).
    #[error("{opcode}: {len} bytes of payload, where none is permitted")]
    UnexpectedPayload {
        /// The opcode.
        opcode: Opcode,
        /// The length of the payload in bytes, pad included.
        len: usize,
    },
}
