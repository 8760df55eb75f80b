//! Work requests and completions, as verbs define them (10.7, 10.8).

use crate::host::{Memory, MemoryError, WindowBind};
use crate::ids::{LKey, QKey, Qpn, RKey, Srqn};
use crate::qp::QpType;
use crate::wire::Feth;
use bitflags::bitflags;

/// The longest message: 2^31 bytes (9.7.1). Longer work requests are refused.
pub const MAX_MESSAGE: u64 = 1 << 31;

/// A scatter/gather element: a piece of registered local memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Bytes. (Verbs reads 0 as 0 here, as rxe does, not as 2^31.)
    pub length: u32,
    /// The key of a region that holds all of them.
    pub lkey: LKey,
}

bitflags! {
    /// How a send work request is carried out; the bits of `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct SendFlags: u32 {
        /// Wait until every earlier READ and atomic of this queue has completed (10.8.3.3).
        const FENCE = 1 << 0;
        /// Make a completion when it is done, on a queue that does not do so for all.
        const SIGNALED = 1 << 1;
        /// Set the solicited event bit on the last packet (9.2.3).
        const SOLICITED = 1 << 2;
        /// The data was taken at posting.
        const INLINE = 1 << 3;
    }
}

/// What a send work request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// A message into the peer's next receive.
    Send,
    /// The same, with 32 bits of immediate data for the receiver's completion.
    SendImm(u32),
    /// The same, and the peer invalidates its key.
    SendInv(RKey),
    /// Data into the peer's memory.
    Write {
        /// Where, in the peer's address space.
        addr: u64,
        /// The peer's key for it.
        rkey: RKey,
    },
    /// The same, and a receive of the peer's completes with immediate data.
    WriteImm {
        /// Where, in the peer's address space.
        addr: u64,
        /// The peer's key for it.
        rkey: RKey,
        /// The immediate data.
        imm: u32,
    },
    /// Data out of the peer's memory.
    Read {
        /// Where, in the peer's address space.
        addr: u64,
        /// The peer's key for it.
        rkey: RKey,
    },
    /// Puts `swap` into 8 bytes of the peer's memory if they hold `compare`; returns what they held.
    CompareSwap {
        /// Where, a multiple of 8.
        addr: u64,
        /// The peer's key for it.
        rkey: RKey,
        /// What is expected there.
        compare: u64,
        /// What to put there.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer's memory; returns what they held.
    FetchAdd {
        /// Where, a multiple of 8.
        addr: u64,
        /// The peer's key for it.
        rkey: RKey,
        /// What to add, modulo 2^64.
        add: u64,
    },
    /// Writes 8 bytes of the peer's memory at once (A19).
    AtomicWrite {
        /// Where, a multiple of 8.
        addr: u64,
        /// The peer's key for it.
        rkey: RKey,
        /// The bytes, as they shall lie there.
        value: [u8; 8],
    },
    /// Waits until what this queue wrote before has got to a place in the peer's memory (A19).
    Flush {
        /// Where, in the peer's address space.
        addr: u64,
        /// The peer's key for it.
        rkey: RKey,
        /// Bytes.
        len: u32,
        /// Where it shall get to, and whether the range counts.
        how: Feth,
    },
    /// Binds a memory window, here: no packet goes out (10.6.7.2).
    BindMw(WindowBind),
    /// Takes away a key of this end: no packet goes out (10.6.7.2.7).
    LocalInv(RKey),
}

impl SendOp {
    /// Whether it consumes a receive of the peer's.
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm { .. }
        )
    }

    /// Whether the peer answers with a response, and not only with an acknowledgement: READ, the
    /// atomics, and without data ATOMIC WRITE and FLUSH.
    pub const fn has_response(self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic() || self.is_confirmed()
    }

    /// Whether the peer answers with a response without data: ATOMIC WRITE and FLUSH (A19).
    pub const fn is_confirmed(self) -> bool {
        matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Whether it takes data from elements, or puts it there.
    pub const fn has_payload(self) -> bool {
        !self.is_local() && !self.is_confirmed()
    }

    /// Whether it is carried out at this end alone, without a packet.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::BindMw(_) | Self::LocalInv(_))
    }

    /// Whether queue pairs of a service have it (9.4; A14, A19).
    pub const fn is_of(self, service: QpType) -> bool {
        match service {
            QpType::Rc => true,
            // What A19 adds has no opcodes there.
            QpType::XrcIni => !self.is_confirmed(),
            QpType::XrcTgt => false,
            QpType::Uc => {
                let plain = matches!(self, Self::Send | Self::SendImm(_));
                plain
                    || matches!(self, Self::Write { .. } | Self::WriteImm { .. })
                    || self.is_local()
            }
            QpType::Ud => matches!(self, Self::Send | Self::SendImm(_)),
            QpType::RawPacket => matches!(self, Self::Send),
        }
    }

    /// Whether it is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// The opcode that its completion shows.
    pub const fn completion_opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInv(_) => WcOpcode::Send,
            Self::Write { .. } | Self::WriteImm { .. } => WcOpcode::Write,
            Self::Read { .. } => WcOpcode::Read,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::BindMw(_) => WcOpcode::BindMw,
            Self::LocalInv(_) => WcOpcode::LocalInv,
        }
    }

    /// Carries out what [`SendOp::is_local`]; of others nothing is to be done. The error is the
    /// status that it ends with.
    pub(crate) fn carry_out<M: Memory>(&self, memory: &M) -> Result<(), WcStatus> {
        let ended = |status| move |_: MemoryError| status;
        match self {
            Self::BindMw(bind) => memory.bind_window(bind).map_err(ended(WcStatus::MwBindErr)),
            // Verbs has no number for the specification's "memory management operation error".
            Self::LocalInv(rkey) => memory
                .invalidate_local(*rkey)
                .map_err(ended(WcStatus::LocQpOpErr)),
            _ => Ok(()),
        }
    }
}

/// The data of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, read (or, for READ and atomics, written) when the packets go.
    Sges(&'a [Sge]),
    /// Copied now.
    Inline(&'a [u8]),
}

/// Where a datagram goes (11.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDestination {
    /// The driver's number of the address handle, which says along which path. Only
    /// [`crate::ud::UdQp::next_destination`] looks at it.
    pub handle: u64,
    /// The queue pair there.
    pub qpn: Qpn,
    /// The key that it must have. With bit 31 set, the sending queue pair's own goes out in its
    /// place (10.2.5).
    pub qkey: QKey,
}

/// Where at the other end a message goes, where the connection alone does not say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A datagram: to this queue pair.
    Datagram(UdDestination),
    /// Any request of an extended reliable connection: to the owner of this shared receive queue
    /// (A14).
    Shared(Srqn),
}

impl Destination {
    /// That of a datagram.
    pub const fn datagram(self) -> Option<UdDestination> {
        match self {
            Self::Datagram(dest) => Some(dest),
            Self::Shared(_) => None,
        }
    }

    /// That of a request of an extended reliable connection.
    pub const fn srq(self) -> Option<Srqn> {
        match self {
            Self::Shared(srq) => Some(srq),
            Self::Datagram(_) => None,
        }
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The program's own number for it.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// The data.
    pub payload: Payload<'a>,
    /// Where it goes; queue pairs of reliable and unreliable connections do not look at it.
    pub dest: Option<Destination>,
}

/// How a work request ended; the numbers of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum WcStatus {
    /// It was done.
    Success = 0,
    /// A receive was too small, or a message too long.
    LocLenErr = 1,
    /// An error inside this end.
    LocQpOpErr = 2,
    /// Kept for its number; end-to-end contexts exist for RD only.
    LocEecOpErr = 3,
    /// A local key, range or permission was wrong.
    LocProtErr = 4,
    /// The queue pair was in error before it was its turn.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The peer sent a response that makes no sense here.
    BadRespErr = 7,
    /// The peer's write with immediate met a protection error here.
    LocAccessErr = 8,
    /// The peer says: invalid request.
    RemInvReqErr = 9,
    /// The peer says: no access to that memory.
    RemAccessErr = 10,
    /// The peer says: it could not finish the operation.
    RemOpErr = 11,
    /// The peer did not answer `retry_cnt` + 1 times.
    RetryExcErr = 12,
    /// The peer had no receive `rnr_retry` + 1 times.
    RnrRetryExcErr = 13,
    /// RD only.
    LocRddViolErr = 14,
    /// RD only.
    RemInvRdReqErr = 15,
    /// The peer aborted the operation.
    RemAbortErr = 16,
    /// RD only.
    InvEecnErr = 17,
    /// RD only.
    InvEecStateErr = 18,
    /// A fatal error of the device.
    FatalErr = 19,
    /// The response did not arrive in time.
    RespTimeoutErr = 20,
    /// Anything else.
    GeneralErr = 21,
}

/// What a completion is of; the numbers of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum WcOpcode {
    /// A send.
    Send = 0,
    /// An RDMA write.
    Write = 1,
    /// An RDMA read.
    Read = 2,
    /// A compare-and-swap.
    CompareSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// The binding of a memory window.
    BindMw = 5,
    /// A local invalidate.
    LocalInv = 6,
    /// A flush.
    Flush = 8,
    /// An atomic write.
    AtomicWrite = 9,
    /// A receive that a send completed.
    Recv = 128,
    /// A receive that an RDMA write with immediate completed.
    RecvWriteImm = 129,
}

/// What came with a received message beside its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Imm(u32),
    /// This key of ours was invalidated.
    Invalidated(RKey),
}

/// What a completion queue entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The number that the program gave the work request.
    pub wr_id: u64,
    /// How it ended. Unless it is a success, only `wr_id`, `qpn` and this are valid, as in verbs.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub byte_len: u32,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair, for a datagram.
    pub src_qp: Qpn,
    /// What came with it.
    pub extra: Extra,
    /// Which IP header the first 40 bytes of the receive hold, in the place of a GRH (A17.4.5); `None`
    /// when they are data.
    pub grh: Option<IpVersion>,
}

/// The version of the IP header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}
