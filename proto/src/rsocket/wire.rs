//! The wire format of rsocket streams.
//!
//! It has three parts: private data at connection setup, 32-bit messages in the immediate data of
//! RDMA WRITEs, and list entries that a side writes into the peer's memory.

use crate::ids::RKey;

/// The version of the protocol.
pub const VERSION: u8 = 1;

/// The number of entries of the local target list.
pub const TARGETS: u32 = 2;

/// Set by a big-endian host: entries in its memory are big-endian too.
const FLAG_BIG_ENDIAN: u8 = 1;
/// Set by a host that supports mapped memory; `target_iomap_size` is valid then.
const FLAG_IOMAP: u8 = 2;

/// The byte order of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Little-endian.
    Little,
    /// Big-endian.
    Big,
}

impl Order {
    /// The byte order of this host.
    pub const NATIVE: Order = if cfg!(target_endian = "big") {
        Order::Big
    } else {
        Order::Little
    };

    fn u64(self, value: u64) -> [u8; 8] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }

    fn read_u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        }
    }

    fn read_u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// Copies `N` bytes from offset `at`.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// A range of one side's memory, as the other side accesses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Area {
    /// The address of the first byte.
    pub addr: u64,
    /// The remote key.
    pub key: RKey,
    /// The length in bytes; for the list of targets, in entries.
    pub len: u32,
}

impl Area {
    /// The encoded size, in bytes.
    pub const BYTES: usize = 16;

    /// Encodes the area in the byte order of a host.
    pub fn to_bytes(self, order: Order) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&order.u64(self.addr));
        bytes[8..12].copy_from_slice(&order.u32(self.key.0));
        bytes[12..].copy_from_slice(&order.u32(self.len));
        bytes
    }

    /// Decodes an area in the byte order of a host.
    pub fn from_bytes(bytes: &[u8; Self::BYTES], order: Order) -> Self {
        Area {
            addr: order.read_u64(array(bytes, 0)),
            key: RKey(order.read_u32(array(bytes, 8))),
            len: order.read_u32(array(bytes, 12)),
        }
    }
}

/// An entry of the list of memory that the peer has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IomapEntry {
    /// The offset by which the local side addresses the first byte.
    pub offset: u64,
    /// The mapped memory.
    pub area: Area,
}

impl IomapEntry {
    /// The encoded size, in bytes.
    pub const BYTES: usize = 8 + Area::BYTES;

    /// Encodes the entry in the byte order of a host.
    pub fn to_bytes(self, order: Order) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&order.u64(self.offset));
        bytes[8..].copy_from_slice(&self.area.to_bytes(order));
        bytes
    }

    /// Decodes an entry in the byte order of a host.
    pub fn from_bytes(bytes: &[u8; Self::BYTES], order: Order) -> Self {
        IomapEntry {
            offset: order.read_u64(array(bytes, 0)),
            area: Area::from_bytes(&array(bytes, 8), order),
        }
    }

    /// Whether `offset` is within the entry.
    pub fn contains(&self, offset: u64) -> bool {
        offset
            .checked_sub(self.offset)
            .is_some_and(|at| at < u64::from(self.area.len))
    }
}

/// Why a peer's private data is not acceptable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The private data is too short.
    #[error("the peer's private data is not that of an rsocket")]
    Short,
    /// The version of the protocol is not supported.
    #[error(
        "the peer uses version {0} of the rsocket protocol; only version {VERSION} is supported"
    )]
    Version(u8),
    /// The peer has no target list, so no buffer could be advertised to it.
    #[error("the peer's list of targets has no entries")]
    NoTargets,
}

/// The parameters of a side, in the private data of its request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnData {
    /// The byte order of its memory.
    pub order: Order,
    /// The initial credits.
    pub credits: u16,
    /// The number of entries of its list of mapped memory, which follows the target list.
    pub iomap_entries: u16,
    /// Its target list; the length is in entries.
    pub targets: Area,
    /// Its first receive buffer.
    pub buffer: Area,
}

impl ConnData {
    /// The encoded size, in bytes.
    pub const BYTES: usize = 8 + 2 * Area::BYTES;

    /// Encodes the parameters as private data, in network byte order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IOMAP
            | match self.order {
                Order::Big => FLAG_BIG_ENDIAN,
                Order::Little => 0,
            };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = to_scale(self.iomap_entries);
        bytes[8..24].copy_from_slice(&self.targets.to_bytes(Order::Big));
        bytes[24..].copy_from_slice(&self.buffer.to_bytes(Order::Big));
        bytes
    }

    /// Decodes private data, which may have trailing zeroes.
    ///
    /// # Errors
    /// [`WireError`] when the data is not acceptable.
    pub fn parse(data: &[u8]) -> Result<Self, WireError> {
        let bytes: &[u8; Self::BYTES] = data.first_chunk().ok_or(WireError::Short)?;
        if bytes[0] != VERSION {
            return Err(WireError::Version(bytes[0]));
        }
        let parsed = ConnData {
            order: match bytes[1] & FLAG_BIG_ENDIAN {
                0 => Order::Little,
                _ => Order::Big,
            },
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomap_entries: match bytes[1] & FLAG_IOMAP {
                0 => 0,
                _ => from_scale(bytes[7]),
            },
            targets: Area::from_bytes(&array(bytes, 8), Order::Big),
            buffer: Area::from_bytes(&array(bytes, 24), Order::Big),
        };
        match parsed.targets.len {
            0 => Err(WireError::NoTargets),
            _ => Ok(parsed),
        }
    }
}

/// The flag of scaled counts: up to 128 a count is encoded as itself, above by its upper bits.
const SCALED: u8 = 0x80;

/// Encodes a count of entries as a byte.
pub fn to_scale(value: u16) -> u8 {
    match u8::try_from(value) {
        Ok(small) if small <= SCALED => small,
        _ => SCALED | (value >> 8).min(0x7f) as u8,
    }
}

/// Decodes a count of entries.
pub fn from_scale(scaled: u8) -> u16 {
    match scaled <= SCALED {
        true => scaled.into(),
        false => u16::from(scaled & !SCALED) << 8,
    }
}

/// A control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// The sender is still connected.
    KeepAlive,
    /// The sender sends no more data.
    Shutdown,
}

/// A message in immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// This many bytes were written to the current target.
    Data(u32),
    /// Data messages may be sent up to this number, modulo 2^16. A new target may have been written
    /// too.
    Credits(u16),
    /// This entry of the list of mapped memory was written.
    Iomap(u32),
    /// A control message.
    Control(Control),
}

/// The upper three bits are the message type.
const TYPE_SHIFT: u32 = 29;
const VALUE: u32 = (1 << TYPE_SHIFT) - 1;
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// Encodes the message as immediate data.
    pub fn to_imm(self) -> u32 {
        let (kind, value) = match self {
            Message::Data(len) => (DATA, len),
            Message::Credits(upto) => (CREDITS, upto.into()),
            Message::Iomap(index) => (IOMAP, index),
            Message::Control(control) => (
                CONTROL,
                match control {
                    Control::Disconnect => 0,
                    Control::KeepAlive => 1,
                    Control::Shutdown => 2,
                },
            ),
        };
        kind << TYPE_SHIFT | value & VALUE
    }

    /// Decodes immediate data; `None` when the message is not defined in this version.
    pub fn from_imm(imm: u32) -> Option<Self> {
        let value = imm & VALUE;
        Some(match imm >> TYPE_SHIFT {
            DATA => Message::Data(value),
            // Only the lower 16 bits count.
            CREDITS => Message::Credits(value as u16),
            IOMAP => Message::Iomap(value),
            CONTROL => Message::Control(match value {
                0 => Control::Disconnect,
                1 => Control::KeepAlive,
                2 => Control::Shutdown,
                _ => return None,
            }),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area = Area {
        addr: 0x0102_0304_0506_0708,
        key: RKey(0x0a0b_0c0d),
        len: 0x1112_1314,
    };

    fn conn_data() -> ConnData {
        ConnData {
            order: Order::Little,
            credits: 384,
            iomap_entries: 128,
            targets: Area { len: 2, ..AREA },
            buffer: AREA,
        }
    }

    #[test]
    fn private_data_is_in_network_order_and_round_trips() {
        let bytes = conn_data().to_bytes();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 128]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[20..24], [0, 0, 0, 2]);
        assert_eq!(bytes[32..36], [0xa, 0xb, 0xc, 0xd]);
        let followed = [&bytes[..], &[0; 16]].concat();
        assert_eq!(ConnData::parse(&followed), Ok(conn_data()));
    }

    #[test]
    fn invalid_private_data_is_refused() {
        let bytes = conn_data().to_bytes();
        assert_eq!(ConnData::parse(&bytes[..39]), Err(WireError::Short));
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(ConnData::parse(&other), Err(WireError::Version(2)));
        let mut none = bytes;
        none[20..24].fill(0);
        assert_eq!(ConnData::parse(&none), Err(WireError::NoTargets));
    }

    #[test]
    fn entries_are_in_the_byte_order_of_their_host() {
        for order in [Order::Little, Order::Big] {
            let entry = IomapEntry {
                offset: 99,
                area: AREA,
            };
            let bytes = entry.to_bytes(order);
            assert_eq!(IomapEntry::from_bytes(&bytes, order), entry);
            assert_eq!(Area::from_bytes(&AREA.to_bytes(order), order), AREA);
        }
        assert_eq!(AREA.to_bytes(Order::Little)[..2], [8, 7]);
    }

    #[test]
    fn entry_contains_the_offsets_of_its_memory() {
        let entry = IomapEntry {
            offset: 100,
            area: Area { len: 10, ..AREA },
        };
        assert!(entry.contains(100) && entry.contains(109));
        assert!(!entry.contains(99) && !entry.contains(110));
    }

    #[test]
    fn message_type_is_in_the_upper_bits() {
        let all = [
            Message::Data(0x1fff_ffff),
            Message::Credits(0xfffe),
            Message::Iomap(3),
            Message::Control(Control::Disconnect),
            Message::Control(Control::Shutdown),
        ];
        for message in all {
            assert_eq!(Message::from_imm(message.to_imm()), Some(message));
        }
        assert_eq!(Message::Credits(5).to_imm(), 0x8000_0005);
        assert_eq!(Message::Control(Control::Shutdown).to_imm(), 0xe000_0002);
        for reserved in [0x2000_0000, 0x6000_0001, 0xa000_0000, 0xe000_0003] {
            assert_eq!(Message::from_imm(reserved), None);
        }
    }

    #[test]
    fn large_counts_of_entries_are_rounded_down() {
        assert_eq!(from_scale(to_scale(128)), 128);
        assert_eq!(from_scale(to_scale(1000)), 768);
        assert_eq!(to_scale(0xffff), 0xff);
    }
}
