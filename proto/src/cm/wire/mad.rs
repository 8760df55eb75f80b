//! The management datagram (MAD): 256 bytes, with a header of 24 bytes (13.4).

use crate::ids::QKey;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of a MAD, in bytes (13.4.2).
pub const LEN: usize = 256;

/// The queue key of the general service interface (10.2.5).
pub const GSI_QKEY: QKey = QKey(0x8001_0000);

/// A whole MAD.
pub type Mad = [u8; LEN];

/// The base version of MADs (13.4.3).
const BASE_VERSION: u8 = 1;
/// The management class of communication management (13.4.4).
const CLASS: u8 = 0x07;
/// The version of that class (12.6.2).
const CLASS_VERSION: u8 = 2;
/// The method of all CM messages (16.7.1).
const METHOD_SEND: u8 = 0x03;

/// The attribute of a MAD: its message type (16.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Attribute {
    /// Request for communication.
    Req = 0x10,
    /// Message receipt acknowledgment.
    Mra = 0x11,
    /// Reject.
    Rej = 0x12,
    /// Reply to request for communication.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Request for communication release.
    Dreq = 0x15,
    /// Reply to request for communication release.
    Drep = 0x16,
    /// Service ID resolution request.
    SidrReq = 0x17,
    /// Service ID resolution reply.
    SidrRep = 0x18,
    /// Load alternate path.
    Lap = 0x19,
    /// Alternate path response.
    Apr = 0x1a,
}

impl Attribute {
    /// All attributes, in ascending order.
    pub const ALL: [Attribute; 11] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Lap,
        Self::Apr,
    ];

    fn from_number(number: u16) -> Option<Self> {
        let at = number.checked_sub(Self::Req as u16)?;
        Self::ALL.get(usize::from(at)).copied()
    }
}

/// Why bytes are not a CM message.
///
/// Such datagrams are dropped, because the communication to answer is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// The length is not 256 bytes.
    #[error("a MAD has {LEN} bytes, not {0}")]
    Length(usize),
    /// The base version is not 1.
    #[error("the MAD has base version {0}, not {BASE_VERSION}")]
    BaseVersion(u8),
    /// The management class is another one.
    #[error("the MAD is of class {0:#04x}, not communication management ({CLASS:#04x})")]
    Class(u8),
    /// The class version is not supported.
    #[error("the MAD has class version {0}, not {CLASS_VERSION}")]
    ClassVersion(u8),
    /// The method is not Send.
    #[error("the MAD has method {0:#04x}, not Send ({METHOD_SEND:#04x})")]
    Method(u8),
    /// The attribute is not a CM message.
    #[error("the attribute {0:#06x} is not a message of communication management")]
    Attribute(u16),
}

/// The variable fields of the MAD header of a CM message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadHeader {
    /// The message type.
    pub attribute: Attribute,
    /// The transaction ID, which an answer repeats (13.4.6.4).
    pub transaction: u64,
    /// The attribute modifier: vendor options, or 0.
    pub modifier: u32,
}

/// The layout on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction: U64,
    attribute: U16,
    reserved: U16,
    modifier: U32,
}

impl MadHeader {
    /// The length of the header, in bytes.
    pub const LEN: usize = size_of::<Raw>();

    /// Reads the header of a MAD; returns it and the message body.
    ///
    /// # Errors
    /// [`MadError`] when `bytes` are not a MAD of communication management.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), MadError> {
        if bytes.len() != LEN {
            return Err(MadError::Length(bytes.len()));
        }
        let Ok((raw, rest)) = Raw::ref_from_prefix(bytes) else {
            return Err(MadError::Length(bytes.len()));
        };
        if raw.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(raw.base_version));
        }
        if raw.class != CLASS {
            return Err(MadError::Class(raw.class));
        }
        if raw.class_version != CLASS_VERSION {
            return Err(MadError::ClassVersion(raw.class_version));
        }
        if raw.method != METHOD_SEND {
            return Err(MadError::Method(raw.method));
        }
        let number = raw.attribute.get();
        let attribute = Attribute::from_number(number).ok_or(MadError::Attribute(number))?;
        let transaction = raw.transaction.get();
        Ok((
            MadHeader {
                attribute,
                transaction,
                modifier: raw.modifier.get(),
            },
            rest,
        ))
    }

    /// Writes the header to the start of a MAD.
    pub fn emit(&self, mad: &mut Mad) {
        let raw = Raw {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            transaction: U64::new(self.transaction),
            attribute: U16::new(self.attribute as u16),
            reserved: U16::ZERO,
            modifier: U32::new(self.modifier),
        };
        mad[..Self::LEN].copy_from_slice(raw.as_bytes());
    }
}
