//! Work requests and completions, as verbs define them (10.7, 10.8).

use crate::access::WindowBind;
use crate::ids::{LKey, QKey, Qpn, RKey, Srqn};
use crate::wire::Feth;
use bitflags::bitflags;

/// The longest message, in bytes (9.7.1). Longer work requests are refused.
pub const MAX_MESSAGE: u64 = 1 << 31;

/// A scatter/gather element: a range of registered local memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Sge {
    /// The virtual address of the first byte.
    pub addr: u64,
    /// The length in bytes. A length of 0 means 0, as in rxe, and not 2^31.
    pub length: u32,
    /// The key of the region that contains the range.
    pub lkey: LKey,
}

impl Sge {
    /// The number of bytes of all elements together.
    #[inline]
    pub fn total_length(sges: &[Sge]) -> u64 {
        match sges {
            // Most lists have one element, for which a loop takes several times as long.
            [sge] => u64::from(sge.length),
            _ => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        }
    }
}

bitflags! {
    /// The flags of a send work request; the bits of `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct SendFlags: u32 {
        /// Start only after all earlier READs and atomics of this queue have completed (10.8.3.3).
        const FENCE = 1 << 0;
        /// Generate a completion on success, on a queue that does not do so for every work request.
        const SIGNALED = 1 << 1;
        /// Set the solicited event bit of the last packet (9.2.3).
        const SOLICITED = 1 << 2;
        /// The data was copied when the work request was posted.
        const INLINE = 1 << 3;
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND: a message into the peer's next receive.
    Send,
    /// SEND with 32 bits of immediate data for the receiver's completion.
    SendImm(u32),
    /// SEND with Invalidate: the peer invalidates its key.
    SendInv(RKey),
    /// RDMA WRITE.
    Write {
        /// The destination, in the peer's address space.
        addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// RDMA WRITE with Immediate: also completes a receive at the peer.
    WriteImm {
        /// The destination, in the peer's address space.
        addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The immediate data.
        imm: u32,
    },
    /// RDMA READ.
    Read {
        /// The source, in the peer's address space.
        addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Compare-and-swap on 8 bytes of the peer's memory; returns the original value.
    CompareSwap {
        /// The address, a multiple of 8.
        addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch-and-add on 8 bytes of the peer's memory; returns the original value.
    FetchAdd {
        /// The address, a multiple of 8.
        addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The addend, modulo 2^64.
        add: u64,
    },
    /// ATOMIC WRITE: writes 8 bytes of the peer's memory atomically (A19).
    AtomicWrite {
        /// The address, a multiple of 8.
        addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The bytes, in memory order.
        value: [u8; 8],
    },
    /// FLUSH: completes when earlier writes are globally visible or persistent at the peer (A19).
    Flush {
        /// The start of the range, in the peer's address space.
        addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The length in bytes.
        len: u32,
        /// The placement type, and whether the range or the whole region is flushed.
        how: Feth,
    },
    /// Binds a memory window. Local: sends no packet (10.6.7.2).
    BindMw(WindowBind),
    /// Invalidates a local key. Local: sends no packet (10.6.7.2.7).
    LocalInv(RKey),
}

impl SendOp {
    /// Whether the operation consumes a receive at the peer.
    pub const fn consumes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm { .. }
        )
    }

    /// Whether the peer answers with a response and not with a plain acknowledgement.
    ///
    /// True for READ and the atomics, and for ATOMIC WRITE and FLUSH, whose response carries no
    /// data.
    pub const fn has_response(self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic() || self.has_empty_response()
    }

    /// Whether the peer answers with a response that carries no data: ATOMIC WRITE and FLUSH (A19).
    pub const fn has_empty_response(self) -> bool {
        matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Whether the operation uses the scatter/gather list, as source or destination.
    pub const fn has_payload(self) -> bool {
        !self.is_local() && !self.has_empty_response()
    }

    /// Whether the operation is executed locally, without a packet.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::BindMw(_) | Self::LocalInv(_))
    }

    /// Whether the operation is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// The opcode of the completion.
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
}

/// The data of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory: read, or for READ and atomics written, when packets are sent or
    /// received.
    Sges(&'a [Sge]),
    /// Inline: copied when the work request is posted.
    Inline(&'a [u8]),
}

/// The destination of a datagram (11.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDestination {
    /// The driver's identifier of the address handle, which names the path.
    ///
    /// The state machine does not interpret it; see [`crate::ud::UdQp::next_destination`].
    pub handle: u64,
    /// The destination queue pair.
    pub qpn: Qpn,
    /// The queue key of the destination. If bit 31 is set, the sending queue pair's own key is sent
    /// instead (10.2.5).
    pub qkey: QKey,
}

/// The destination of a message, where the connection does not determine it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A datagram, to this queue pair.
    Datagram(UdDestination),
    /// An XRC request, to this shared receive queue (A14).
    Shared(Srqn),
}

impl Destination {
    /// The destination, if it is a datagram's.
    pub const fn datagram(self) -> Option<UdDestination> {
        match self {
            Self::Datagram(dest) => Some(dest),
            Self::Shared(_) => None,
        }
    }

    /// The shared receive queue, if it is an XRC request's.
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
    /// The program's number for the work request.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The flags.
    pub flags: SendFlags,
    /// The data.
    pub payload: Payload<'a>,
    /// The destination. RC and UC queue pairs ignore it.
    pub dest: Option<Destination>,
}

/// The status of a completion; the numbers of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum WcStatus {
    /// The work request succeeded.
    Success = 0,
    /// The receive was too small, or the message too long.
    LocLenErr = 1,
    /// An internal error of the local queue pair.
    LocQpOpErr = 2,
    /// RD only.
    LocEecOpErr = 3,
    /// A local key, range or permission was invalid.
    LocProtErr = 4,
    /// The queue pair entered the error state before the work request was executed.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The peer sent an invalid response.
    BadRespErr = 7,
    /// An RDMA WRITE with Immediate from the peer met a protection error here.
    LocAccessErr = 8,
    /// The peer refused the request as invalid.
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    RemAccessErr = 10,
    /// The peer could not complete the operation.
    RemOpErr = 11,
    /// The transport retry limit was exceeded: `retry_cnt` + 1 attempts were not answered.
    RetryExcErr = 12,
    /// The RNR retry limit was exceeded: `rnr_retry` + 1 attempts found no receive at the peer.
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
    /// Any other error.
    GeneralErr = 21,
}

/// The operation that completed; the numbers of `enum ibv_wc_opcode`.
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

/// Data that a received message carries beside its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Imm(u32),
    /// The local key that a SEND with Invalidate invalidated.
    Invalidated(RKey),
}

/// A completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The program's number for the work request.
    pub wr_id: u64,
    /// The status. On an error, only `wr_id`, `qpn` and `status` are valid, as in verbs.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub byte_len: u32,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair, for a datagram.
    pub src_qp: Qpn,
    /// Immediate data or the invalidated key.
    pub extra: Extra,
    /// Which IP header the first 40 bytes of the receive hold, in the place of a GRH (A17.4.5);
    /// `None` when they are data.
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
