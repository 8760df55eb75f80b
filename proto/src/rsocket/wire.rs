//! What the two ends of a stream tell each other: private data while they connect, then messages of 32 bits
//! in the immediate data of RDMA WRITEs, and entries that one writes into lists of the other.

use crate::ids::RKey;

/// The version of the protocol.
pub const VERSION: u8 = 1;

/// How many entries our list of targets has.
pub const TARGETS: u32 = 2;

/// Set by a host that is big-endian: entries in its memory are so, too.
const FLAG_BIG_ENDIAN: u8 = 1;
/// Set by one that knows mapped memory; `target_iomap_size` counts then.
const FLAG_IOMAP: u8 = 2;

/// The byte order of a host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

impl Order {
    /// That of this host.
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

/// The `N` bytes from `at` on.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// A piece of an end's memory, as the other names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Area {
    /// Where it begins.
    pub addr: u64,
    /// The key for it.
    pub key: RKey,
    /// Bytes; of the list of targets: entries.
    pub len: u32,
}

impl Area {
    /// How many bytes one takes in memory and in private data.
    pub const BYTES: usize = 16;

    /// As it lies in the memory of a host of this order.
    pub fn to_bytes(self, order: Order) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&order.u64(self.addr));
        bytes[8..12].copy_from_slice(&order.u32(self.key.0));
        bytes[12..].copy_from_slice(&order.u32(self.len));
        bytes
    }

    /// What lies in the memory of a host of this order.
    pub fn from_bytes(bytes: &[u8; Self::BYTES], order: Order) -> Self {
        Area {
            addr: order.read_u64(array(bytes, 0)),
            key: RKey(order.read_u32(array(bytes, 8))),
            len: order.read_u32(array(bytes, 12)),
        }
    }
}

/// An entry of the list of memory that the other end has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IomapEntry {
    /// By what offset this end names its first byte.
    pub offset: u64,
    /// Where it is.
    pub area: Area,
}

impl IomapEntry {
    /// How many bytes one takes in memory.
    pub const BYTES: usize = 8 + Area::BYTES;

    /// As it lies in the memory of a host of this order.
    pub fn to_bytes(self, order: Order) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&order.u64(self.offset));
        bytes[8..].copy_from_slice(&self.area.to_bytes(order));
        bytes
    }

    /// What lies in the memory of a host of this order.
    pub fn from_bytes(bytes: &[u8; Self::BYTES], order: Order) -> Self {
        IomapEntry {
            offset: order.read_u64(array(bytes, 0)),
            area: Area::from_bytes(&array(bytes, 8), order),
        }
    }

    /// Whether the byte of this offset lies in it.
    pub fn has(&self, offset: u64) -> bool {
        offset
            .checked_sub(self.offset)
            .is_some_and(|at| at < u64::from(self.area.len))
    }
}

/// Why an end cannot be spoken to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The private data is too short to be one of a stream socket.
    #[error("the peer's private data is not that of an rsocket")]
    Short,
    /// Another version of the protocol.
    #[error("the peer speaks version {0} of the rsocket protocol, and this is version {VERSION}")]
    Version(u8),
    /// The peer has no list of targets, so it could never be told of a buffer.
    #[error("the peer's list of targets has no entries")]
    NoTargets,
}

/// What an end says of itself in the private data of its request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnData {
    /// The order of its memory.
    pub order: Order,
    /// How many messages with data it takes at first.
    pub credits: u16,
    /// How many entries its list of mapped memory has. It follows its list of targets.
    pub iomap_entries: u16,
    /// Its list of targets; its length counts entries.
    pub targets: Area,
    /// Its first receive buffer.
    pub buffer: Area,
}

impl ConnData {
    /// How many bytes it takes.
    pub const BYTES: usize = 8 + 2 * Area::BYTES;

    /// For private data: numbers are in network order here.
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

    /// What is in private data, which may be followed by zeros.
    ///
    /// # Errors
    /// See [`WireError`].
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

/// Up to 128 a number stands for itself; above, for its upper bits.
const SCALED: u8 = 0x80;

/// A number of entries as a byte.
pub fn to_scale(value: u16) -> u8 {
    match u8::try_from(value) {
        Ok(small) if small <= SCALED => small,
        _ => SCALED | (value >> 8).min(0x7f) as u8,
    }
}

/// The number of entries that a byte stands for.
pub fn from_scale(scaled: u8) -> u16 {
    match scaled <= SCALED {
        true => scaled.into(),
        false => u16::from(scaled & !SCALED) << 8,
    }
}

/// What an end does to the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// It neither sends nor receives any more.
    Disconnect,
    /// It is there.
    KeepAlive,
    /// It does not send any more.
    Shutdown,
}

/// A message in immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// So many bytes were written to the next place.
    Data(u32),
    /// Up to this number, modulo 2^16, messages with data may be sent; and the list of targets may
    /// have a new entry.
    Credits(u16),
    /// This entry of the list of mapped memory was written.
    Iomap(u32),
    /// The connection.
    Control(Control),
}

/// The type of a message is in its upper three bits.
const TYPE_SHIFT: u32 = 29;
const VALUE: u32 = (1 << TYPE_SHIFT) - 1;
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// As immediate data.
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

    /// What immediate data says; `None` for what this version does not know.
    pub fn from_imm(imm: u32) -> Option<Self> {
        let value = imm & VALUE;
        Some(match imm >> TYPE_SHIFT {
            DATA => Message::Data(value),
            // The lower 16 bits count.
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
    fn private_data_is_in_network_order_and_survives() {
        let bytes = conn_data().to_bytes();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 128]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[20..24], [0, 0, 0, 2]);
        assert_eq!(bytes[32..36], [0xa, 0xb, 0xc, 0xd]);
        let followed = [&bytes[..], &[0; 16]].concat();
        assert_eq!(ConnData::parse(&followed), Ok(conn_data()));
    }

    #[test]
    fn what_is_no_rsocket_is_refused() {
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
    fn entries_lie_in_the_order_of_their_host() {
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
    fn an_entry_has_the_offsets_of_its_memory() {
        let entry = IomapEntry {
            offset: 100,
            area: Area { len: 10, ..AREA },
        };
        assert!(entry.has(100) && entry.has(109));
        assert!(!entry.has(99) && !entry.has(110));
    }

    #[test]
    fn messages_are_told_by_their_upper_bits() {
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
    fn large_numbers_of_entries_are_told_roughly() {
        assert_eq!(from_scale(to_scale(128)), 128);
        assert_eq!(from_scale(to_scale(1000)), 768);
        assert_eq!(to_scale(0xffff), 0xff);
    }
}
