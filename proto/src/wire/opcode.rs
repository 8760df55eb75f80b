//! The table of opcodes (9.2.1; annexes A14, A17.9.3 and A19).
//!
//! Parser, requester, responder and capture all use this table. A row gives an opcode's transport
//! and operation, the packet's position in its message, the headers after the BTH, and the payload
//! rule.

use super::Layout;
use bitflags::bitflags;
use std::fmt;

bitflags! {
    /// The extended headers after a BTH (9.3). They follow in the order of this list.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
    pub struct Headers: u16 {
        /// Datagram extended transport header.
        const DETH = 1 << 0;
        /// XRC extended transport header.
        const XRCETH = 1 << 1;
        /// Flush extended transport header.
        const FETH = 1 << 2;
        /// RDMA extended transport header.
        const RETH = 1 << 3;
        /// Atomic extended transport header.
        const ATOMIC_ETH = 1 << 4;
        /// Acknowledge extended transport header.
        const AETH = 1 << 5;
        /// Atomic acknowledge extended transport header.
        const ATOMIC_ACK_ETH = 1 << 6;
        /// Immediate data.
        const IMMDT = 1 << 7;
        /// Invalidate extended transport header.
        const IETH = 1 << 8;
        /// The 16 reserved bytes of a congestion notification packet.
        const CNP = 1 << 9;
    }
}

impl Headers {
    /// The total length of these headers, in bytes.
    pub const fn bytes(self) -> usize {
        let mut len = 0;
        let mut i = 0;
        while i < HEADER_LENGTHS.len() {
            if self.contains(HEADER_LENGTHS[i].0) {
                len += HEADER_LENGTHS[i].1;
            }
            i += 1;
        }
        len
    }
}

const HEADER_LENGTHS: [(Headers, usize); 10] = [
    (Headers::DETH, super::Deth::LEN),
    (Headers::XRCETH, super::Xrceth::LEN),
    (Headers::FETH, super::Feth::LEN),
    (Headers::RETH, super::Reth::LEN),
    (Headers::ATOMIC_ETH, super::AtomicEth::LEN),
    (Headers::AETH, super::Aeth::LEN),
    (Headers::ATOMIC_ACK_ETH, super::AtomicAckEth::LEN),
    (Headers::IMMDT, super::ImmDt::LEN),
    (Headers::IETH, super::Ieth::LEN),
    (Headers::CNP, super::Cnp::LEN),
];

/// The transport service of an opcode: its top three bits, except for the CNP (9.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection (A14).
    Xrc,
    /// Congestion notification: not part of any transport (A17.9.3).
    Cnp,
    /// Manufacturer specific opcodes (9.2.1): urxe's flow-control probes between same-host peers.
    Manufacturer,
}

/// The operation of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Part of a SEND.
    Send,
    /// Part of an RDMA WRITE.
    Write,
    /// An RDMA READ request.
    ReadRequest,
    /// Part of an RDMA READ response; without data, the response to FLUSH or ATOMIC WRITE.
    ReadResponse,
    /// An ACK or a NAK.
    Ack,
    /// The response to an atomic.
    AtomicAck,
    /// Compare-and-swap of 8 bytes.
    CompareSwap,
    /// Fetch-and-add of 8 bytes.
    FetchAdd,
    /// FLUSH: makes earlier writes globally visible or persistent (A19).
    Flush,
    /// ATOMIC WRITE: writes 8 bytes atomically (A19).
    AtomicWrite,
    /// A congestion notification.
    Cnp,
    /// A flow-control probe of an unreliable connection; see [`crate::uc`].
    FlowProbe,
    /// The echo of a flow-control probe.
    FlowProbeEcho,
    /// A reserved opcode. The responder treats it as an unsupported request (9.9.3); all bytes
    /// after the BTH count as payload.
    Reserved,
}

impl Operation {
    /// Whether a requester sends it and a responder receives it.
    pub const fn is_request(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::Write
                | Self::ReadRequest
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::Flush
                | Self::AtomicWrite
                | Self::Reserved
        )
    }

    /// Whether a responder sends it and a requester receives it.
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Ack | Self::AtomicAck)
    }
}

/// The position of a packet in its message (9.7.4). Single-packet operations are
/// [`Position::Only`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last,
    /// The only packet.
    Only,
}

impl Position {
    /// Returns the position of a packet that starts and ends its message as given.
    pub const fn new(starts: bool, ends: bool) -> Self {
        match (starts, ends) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Whether the packet starts a message.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the packet ends a message.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The payload lengths that a packet may have, without the pad (9.7.4, 9.7.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadRule {
    /// No payload.
    None,
    /// Exactly the path MTU.
    FullMtu,
    /// From one byte to the path MTU.
    AtLeastOne,
    /// From no bytes to the path MTU.
    UpToMtu,
    /// Exactly this many bytes.
    Fixed(u16),
}

impl PayloadRule {
    /// Whether a packet may carry `len` bytes at a path MTU of `mtu` bytes.
    pub const fn accepts(self, len: usize, mtu: usize) -> bool {
        match self {
            Self::None => len == 0,
            Self::FullMtu => len == mtu,
            Self::AtLeastOne => 1 <= len && len <= mtu,
            Self::UpToMtu => len <= mtu,
            Self::Fixed(n) => len == n as usize,
        }
    }
}

/// A row of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OpcodeInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// The name in the specification.
    pub name: &'static str,
    /// The transport.
    pub transport: Transport,
    /// The operation.
    pub operation: Operation,
    /// The position in the message.
    pub position: Position,
    /// The headers after the BTH.
    pub headers: Headers,
    /// The length of `headers`, in bytes.
    pub headers_len: usize,
    /// The permitted payload.
    pub payload: PayloadRule,
}

/// Defines the enum and its table from one list, so that every opcode has a row.
macro_rules! opcodes {
    ($($value:literal $variant:ident $name:literal
        $transport:ident $operation:ident $position:ident [$($header:ident)*] $payload:ident $(($size:literal))?;)*) => {
        /// An opcode of a supported transport.
        ///
        /// The reserved opcodes of RC are included, because a responder answers them with a NAK.
        /// Packets with any other opcode are dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $name] $variant = $value,)*
        }

        const ROWS: &[OpcodeInfo] = &[$(OpcodeInfo {
            opcode: Opcode::$variant,
            name: $name,
            transport: Transport::$transport,
            operation: Operation::$operation,
            position: Position::$position,
            headers: Headers::empty()$(.union(Headers::$header))*,
            headers_len: Headers::empty()$(.union(Headers::$header))*.bytes(),
            payload: PayloadRule::$payload$(($size))?,
        },)*];
    };
}

opcodes! {
    0x00 RcSendFirst "RC SEND First" Rc Send First [] FullMtu;
    0x01 RcSendMiddle "RC SEND Middle" Rc Send Middle [] FullMtu;
    0x02 RcSendLast "RC SEND Last" Rc Send Last [] AtLeastOne;
    0x03 RcSendLastImm "RC SEND Last with Immediate" Rc Send Last [IMMDT] AtLeastOne;
    0x04 RcSendOnly "RC SEND Only" Rc Send Only [] UpToMtu;
    0x05 RcSendOnlyImm "RC SEND Only with Immediate" Rc Send Only [IMMDT] UpToMtu;
    0x06 RcWriteFirst "RC RDMA WRITE First" Rc Write First [RETH] FullMtu;
    0x07 RcWriteMiddle "RC RDMA WRITE Middle" Rc Write Middle [] FullMtu;
    0x08 RcWriteLast "RC RDMA WRITE Last" Rc Write Last [] AtLeastOne;
    0x09 RcWriteLastImm "RC RDMA WRITE Last with Immediate" Rc Write Last [IMMDT] AtLeastOne;
    0x0a RcWriteOnly "RC RDMA WRITE Only" Rc Write Only [RETH] UpToMtu;
    0x0b RcWriteOnlyImm "RC RDMA WRITE Only with Immediate" Rc Write Only [RETH IMMDT] UpToMtu;
    0x0c RcReadRequest "RC RDMA READ Request" Rc ReadRequest Only [RETH] None;
    0x0d RcReadResponseFirst "RC RDMA READ response First" Rc ReadResponse First [AETH] FullMtu;
    0x0e RcReadResponseMiddle "RC RDMA READ response Middle" Rc ReadResponse Middle [] FullMtu;
    0x0f RcReadResponseLast "RC RDMA READ response Last" Rc ReadResponse Last [AETH] AtLeastOne;
    0x10 RcReadResponseOnly "RC RDMA READ response Only" Rc ReadResponse Only [AETH] UpToMtu;
    0x11 RcAck "RC Acknowledge" Rc Ack Only [AETH] None;
    0x12 RcAtomicAck "RC ATOMIC Acknowledge" Rc AtomicAck Only [AETH ATOMIC_ACK_ETH] None;
    0x13 RcCompareSwap "RC CmpSwap" Rc CompareSwap Only [ATOMIC_ETH] None;
    0x14 RcFetchAdd "RC FetchAdd" Rc FetchAdd Only [ATOMIC_ETH] None;
    0x15 RcReserved15 "RC reserved 0x15" Rc Reserved Only [] UpToMtu;
    0x16 RcSendLastInv "RC SEND Last with Invalidate" Rc Send Last [IETH] AtLeastOne;
    0x17 RcSendOnlyInv "RC SEND Only with Invalidate" Rc Send Only [IETH] UpToMtu;
    0x18 RcReserved18 "RC reserved 0x18" Rc Reserved Only [] UpToMtu;
    0x19 RcReserved19 "RC reserved 0x19" Rc Reserved Only [] UpToMtu;
    0x1a RcReserved1a "RC reserved 0x1a" Rc Reserved Only [] UpToMtu;
    0x1b RcReserved1b "RC reserved 0x1b" Rc Reserved Only [] UpToMtu;
    0x1c RcFlush "RC FLUSH" Rc Flush Only [FETH RETH] None;
    0x1d RcAtomicWrite "RC ATOMIC WRITE" Rc AtomicWrite Only [RETH] Fixed(8);
    0x1e RcReserved1e "RC reserved 0x1e" Rc Reserved Only [] UpToMtu;
    0x1f RcReserved1f "RC reserved 0x1f" Rc Reserved Only [] UpToMtu;

    0x20 UcSendFirst "UC SEND First" Uc Send First [] FullMtu;
    0x21 UcSendMiddle "UC SEND Middle" Uc Send Middle [] FullMtu;
    0x22 UcSendLast "UC SEND Last" Uc Send Last [] AtLeastOne;
    0x23 UcSendLastImm "UC SEND Last with Immediate" Uc Send Last [IMMDT] AtLeastOne;
    0x24 UcSendOnly "UC SEND Only" Uc Send Only [] UpToMtu;
    0x25 UcSendOnlyImm "UC SEND Only with Immediate" Uc Send Only [IMMDT] UpToMtu;
    0x26 UcWriteFirst "UC RDMA WRITE First" Uc Write First [RETH] FullMtu;
    0x27 UcWriteMiddle "UC RDMA WRITE Middle" Uc Write Middle [] FullMtu;
    0x28 UcWriteLast "UC RDMA WRITE Last" Uc Write Last [] AtLeastOne;
    0x29 UcWriteLastImm "UC RDMA WRITE Last with Immediate" Uc Write Last [IMMDT] AtLeastOne;
    0x2a UcWriteOnly "UC RDMA WRITE Only" Uc Write Only [RETH] UpToMtu;
    0x2b UcWriteOnlyImm "UC RDMA WRITE Only with Immediate" Uc Write Only [RETH IMMDT] UpToMtu;

    0x64 UdSendOnly "UD SEND Only" Ud Send Only [DETH] UpToMtu;
    0x65 UdSendOnlyImm "UD SEND Only with Immediate" Ud Send Only [DETH IMMDT] UpToMtu;

    0x81 Cnp "CNP" Cnp Cnp Only [CNP] None;

    0xa0 XrcSendFirst "XRC SEND First" Xrc Send First [XRCETH] FullMtu;
    0xa1 XrcSendMiddle "XRC SEND Middle" Xrc Send Middle [XRCETH] FullMtu;
    0xa2 XrcSendLast "XRC SEND Last" Xrc Send Last [XRCETH] AtLeastOne;
    0xa3 XrcSendLastImm "XRC SEND Last with Immediate" Xrc Send Last [XRCETH IMMDT] AtLeastOne;
    0xa4 XrcSendOnly "XRC SEND Only" Xrc Send Only [XRCETH] UpToMtu;
    0xa5 XrcSendOnlyImm "XRC SEND Only with Immediate" Xrc Send Only [XRCETH IMMDT] UpToMtu;
    0xa6 XrcWriteFirst "XRC RDMA WRITE First" Xrc Write First [XRCETH RETH] FullMtu;
    0xa7 XrcWriteMiddle "XRC RDMA WRITE Middle" Xrc Write Middle [XRCETH] FullMtu;
    0xa8 XrcWriteLast "XRC RDMA WRITE Last" Xrc Write Last [XRCETH] AtLeastOne;
    0xa9 XrcWriteLastImm "XRC RDMA WRITE Last with Immediate"
        Xrc Write Last [XRCETH IMMDT] AtLeastOne;
    0xaa XrcWriteOnly "XRC RDMA WRITE Only" Xrc Write Only [XRCETH RETH] UpToMtu;
    0xab XrcWriteOnlyImm "XRC RDMA WRITE Only with Immediate"
        Xrc Write Only [XRCETH RETH IMMDT] UpToMtu;
    0xac XrcReadRequest "XRC RDMA READ Request" Xrc ReadRequest Only [XRCETH RETH] None;
    0xad XrcReadResponseFirst "XRC RDMA READ response First" Xrc ReadResponse First [AETH] FullMtu;
    0xae XrcReadResponseMiddle "XRC RDMA READ response Middle" Xrc ReadResponse Middle [] FullMtu;
    0xaf XrcReadResponseLast "XRC RDMA READ response Last" Xrc ReadResponse Last [AETH] AtLeastOne;
    0xb0 XrcReadResponseOnly "XRC RDMA READ response Only" Xrc ReadResponse Only [AETH] UpToMtu;
    0xb1 XrcAck "XRC Acknowledge" Xrc Ack Only [AETH] None;
    0xb2 XrcAtomicAck "XRC ATOMIC Acknowledge" Xrc AtomicAck Only [AETH ATOMIC_ACK_ETH] None;
    0xb3 XrcCompareSwap "XRC CmpSwap" Xrc CompareSwap Only [XRCETH ATOMIC_ETH] None;
    0xb4 XrcFetchAdd "XRC FetchAdd" Xrc FetchAdd Only [XRCETH ATOMIC_ETH] None;
    0xb6 XrcSendLastInv "XRC SEND Last with Invalidate" Xrc Send Last [XRCETH IETH] AtLeastOne;
    0xb7 XrcSendOnlyInv "XRC SEND Only with Invalidate" Xrc Send Only [XRCETH IETH] UpToMtu;

    0xc0 FlowProbe "urxe flow-control probe" Manufacturer FlowProbe Only [] None;
    0xc1 FlowProbeEcho "urxe flow-control probe echo" Manufacturer FlowProbeEcho Only [] None;
}

/// The row of each opcode byte. A byte that is not an opcode has the first row, which is not read.
static INFO: [OpcodeInfo; 256] = {
    let mut info = [ROWS[0]; 256];
    let mut i = 0;
    while i < ROWS.len() {
        info[ROWS[i].opcode as usize] = ROWS[i];
        i += 1;
    }
    info
};

/// The opcode of each byte.
static DECODE: [Option<Opcode>; 256] = {
    let mut decode = [None; 256];
    let mut i = 0;
    while i < ROWS.len() {
        decode[ROWS[i].opcode as usize] = Some(ROWS[i].opcode);
        i += 1;
    }
    decode
};

const TRANSPORTS: usize = Transport::Manufacturer as usize + 1;
const OPERATIONS: usize = Operation::Reserved as usize + 1;
const POSITIONS: usize = Position::Only as usize + 1;
/// No extra header, ImmDt, or IETH.
const EXTRAS: usize = 3;

/// The opcode of each combination, for [`Opcode::of`].
static LOOKUP: [[[[Option<Opcode>; EXTRAS]; POSITIONS]; OPERATIONS]; TRANSPORTS] = {
    let mut lookup = [[[[None; EXTRAS]; POSITIONS]; OPERATIONS]; TRANSPORTS];
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        i += 1;
        // Reserved opcodes are never sent.
        if matches!(row.operation, Operation::Reserved) {
            continue;
        }
        let extra = match extra_index(row.headers.intersection(Opcode::EXTRA)) {
            Some(extra) => extra,
            None => panic!("no opcode has both immediate data and a key to invalidate"),
        };
        let slot = &mut lookup[row.transport as usize][row.operation as usize]
            [row.position as usize][extra];
        assert!(slot.is_none(), "two opcodes have the same fields");
        *slot = Some(row.opcode);
    }
    lookup
};

const fn extra_index(extra: Headers) -> Option<usize> {
    const NOTHING: u16 = Headers::empty().bits();
    const IMMDT: u16 = Headers::IMMDT.bits();
    const IETH: u16 = Headers::IETH.bits();
    match extra.bits() {
        NOTHING => Some(0),
        IMMDT => Some(1),
        IETH => Some(2),
        _ => None,
    }
}

impl Opcode {
    /// The headers that distinguish otherwise equal opcodes; see [`Opcode::of`].
    pub const EXTRA: Headers = Headers::IMMDT.union(Headers::IETH);

    /// Decodes an opcode byte; `None` when the transport is not supported or has no such opcode.
    #[inline]
    pub fn from_u8(byte: u8) -> Option<Opcode> {
        DECODE[usize::from(byte)]
    }

    /// Returns the row of the opcode.
    #[inline]
    pub fn info(self) -> &'static OpcodeInfo {
        &INFO[usize::from(self as u8)]
    }

    /// Returns the opcode for building a packet; `None` when the transport has no such packet.
    ///
    /// `extra` is [`Headers::IMMDT`], [`Headers::IETH`] or empty.
    #[inline]
    pub fn of(
        transport: Transport,
        operation: Operation,
        position: Position,
        extra: Headers,
    ) -> Option<Opcode> {
        let extra = extra_index(extra)?;
        LOOKUP[transport as usize][operation as usize][position as usize][extra]
    }

    /// Iterates over all opcodes, in ascending order.
    pub fn all() -> impl Iterator<Item = Opcode> {
        ROWS.iter().map(|row| row.opcode)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.info().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_byte_and_by_its_fields() {
        let mut known = 0;
        for byte in 0..=u8::MAX {
            let Some(opcode) = Opcode::from_u8(byte) else {
                continue;
            };
            known += 1;
            assert_eq!(opcode as u8, byte);
            let info = opcode.info();
            assert_eq!(info.opcode, opcode);
            let extra = info.headers & Opcode::EXTRA;
            let found = Opcode::of(info.transport, info.operation, info.position, extra);
            let is_built = info.operation != Operation::Reserved;
            assert_eq!(found, is_built.then_some(opcode));
        }
        // RC: 25 and 7 reserved; UC: 12; UD: 2; XRC: 23; the CNP; and urxe's 2.
        assert_eq!(known, 72);
        assert_eq!(Opcode::all().count(), known);
    }

    #[test]
    fn top_three_bits_are_the_transport() {
        for opcode in Opcode::all() {
            let expected = match opcode as u8 >> 5 {
                0 => Transport::Rc,
                1 => Transport::Uc,
                3 => Transport::Ud,
                4 => Transport::Cnp,
                5 => Transport::Xrc,
                6 => Transport::Manufacturer,
                other => panic!("{opcode:?} is of transport {other}"),
            };
            assert_eq!(opcode.info().transport, expected, "{opcode:?}");
        }
    }

    #[test]
    fn connected_transports_share_the_low_five_bits() {
        for opcode in Opcode::all() {
            let info = opcode.info();
            if !matches!(info.transport, Transport::Uc | Transport::Xrc) {
                continue;
            }
            let rc = Opcode::from_u8(opcode as u8 & 0x1f).unwrap().info();
            assert_eq!(info.operation, rc.operation, "{opcode:?}");
            assert_eq!(info.position, rc.position, "{opcode:?}");
            assert_eq!(info.payload, rc.payload, "{opcode:?}");
            assert_eq!(info.headers - Headers::XRCETH, rc.headers, "{opcode:?}");
            // Annex A14: every XRC request names the shared receive queue, no response does.
            assert_eq!(
                info.headers.contains(Headers::XRCETH),
                info.transport == Transport::Xrc && info.operation.is_request(),
                "{opcode:?}"
            );
        }
    }

    #[test]
    fn only_the_last_packet_has_immediate_data_or_a_key_to_invalidate() {
        for opcode in Opcode::all() {
            let info = opcode.info();
            if info.headers.intersects(Opcode::EXTRA) {
                assert!(info.position.ends(), "{opcode:?}");
            }
        }
    }

    #[test]
    fn payload_rules_bound_the_payload_length() {
        assert!(PayloadRule::None.accepts(0, 256) && !PayloadRule::None.accepts(1, 256));
        for (len, ok) in [(0, false), (255, false), (256, true), (257, false)] {
            assert_eq!(PayloadRule::FullMtu.accepts(len, 256), ok);
        }
        for (len, ok) in [(0, false), (1, true), (256, true), (257, false)] {
            assert_eq!(PayloadRule::AtLeastOne.accepts(len, 256), ok);
        }
        for (len, ok) in [(0, true), (1, true), (256, true), (257, false)] {
            assert_eq!(PayloadRule::UpToMtu.accepts(len, 256), ok);
        }
        assert!(PayloadRule::Fixed(8).accepts(8, 256) && !PayloadRule::Fixed(8).accepts(4, 256));
    }

    #[test]
    fn combinations_without_an_opcode_are_none() {
        use Operation::*;
        let none = Headers::empty();
        let of = Opcode::of;
        assert_eq!(of(Transport::Uc, ReadRequest, Position::Only, none), None);
        assert_eq!(of(Transport::Ud, Send, Position::First, none), None);
        assert_eq!(
            of(Transport::Rc, Send, Position::First, Headers::IMMDT),
            None
        );
        assert_eq!(
            of(Transport::Rc, Write, Position::Last, Headers::IETH),
            None
        );
        assert_eq!(of(Transport::Rc, Send, Position::Only, Opcode::EXTRA), None);
        assert_eq!(
            of(Transport::Rc, Write, Position::Only, Headers::RETH),
            None
        );
    }
}
