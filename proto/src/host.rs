//! The environment of a state machine, as traits: memory, receives, completions and the packet
//! sink.
//!
//! The driver implements these traits over registered memory and real queues, the simulator over
//! plain vectors. Each result holds for the current call only. A key that was valid for one packet
//! may be deregistered before the next, so state machines cache nothing about memory between calls.

pub use crate::access::{Access, WindowBind};

use crate::ids::{RKey, Srqn};
use crate::time::Time;
use crate::work::{Completion, Sge};

/// Why an access to memory failed.
///
/// The consequence depends on the side of the access. A local access ends its work request with a
/// local protection error; a remote one is answered with a NAK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No region or window of this protection domain has the key.
    #[error("no memory region of this protection domain has the key")]
    Key,
    /// The region does not grant this kind of access.
    #[error("the memory region does not grant this access")]
    Permission,
    /// Part of the range is outside the region.
    #[error("the range is outside the memory region")]
    Range,
    /// Part of the range is not mapped, or is mapped without the necessary rights.
    #[error("part of the range is not mapped, or may not be written")]
    Fault,
    /// The type or the state of the memory window does not allow the access.
    #[error("the memory window's type or state does not allow this")]
    Window,
}

/// An operation on 8 naturally aligned bytes, in the host's byte order, done atomically.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Stores `swap` if the bytes equal `compare`.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd(u64),
    /// Stores the value: ATOMIC WRITE (A19).
    Store(u64),
}

impl AtomicOp {
    /// The right that the region must grant to a remote requester.
    pub const fn access(self) -> Access {
        match self {
            Self::CompareSwap { .. } | Self::FetchAdd(_) => Access::REMOTE_ATOMIC,
            Self::Store(_) => Access::REMOTE_WRITE,
        }
    }
}

/// A remote key, and the shared receive queue whose protection domain it must belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteKey {
    /// The key.
    pub rkey: RKey,
    /// The shared receive queue whose protection domain applies; `None` for the queue pair's own.
    ///
    /// An XRC target has no protection domain: it serves every shared receive queue of its XRC
    /// domain, and each packet names one of them (A14).
    pub srq: Option<Srqn>,
}

impl From<RKey> for RemoteKey {
    fn from(rkey: RKey) -> Self {
        RemoteKey { rkey, srq: None }
    }
}

/// The memory that a queue pair may access: that of its protection domain.
pub trait Memory {
    /// Checks that all of `sges` may be read (or, with [`Access::LOCAL_WRITE`], written) now.
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), MemoryError>;

    /// Copies `out.len()` bytes from the scatter/gather list, starting `offset` bytes into it.
    fn gather(&self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `data` into the scatter/gather list, starting `offset` bytes into it.
    fn scatter(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError>;

    /// Checks that a remote requester may do `access` to `len` bytes at `addr` now.
    fn check_remote(
        &self,
        key: RemoteKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemoryError>;

    /// Reads for a remote requester, with the checks of [`Memory::check_remote`].
    fn remote_read(&self, key: RemoteKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// Writes for a remote requester, with the checks of [`Memory::check_remote`].
    fn remote_write(&self, key: RemoteKey, addr: u64, data: &[u8]) -> Result<(), MemoryError>;

    /// Executes a remote atomic and returns the value before it.
    ///
    /// `addr` is a multiple of 8. The operation is atomic with respect to the program's own atomics
    /// on the same 8 bytes.
    fn remote_atomic(&self, key: RemoteKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError>;

    /// Executes a FLUSH for a remote requester (A19).
    ///
    /// It makes earlier remote writes to `range` (address and length in bytes), or to the whole
    /// region, globally visible or persistent, as `access` says.
    fn flush(
        &self,
        key: RemoteKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemoryError>;

    /// Invalidates a key for a remote SEND with Invalidate.
    fn invalidate(&self, key: RemoteKey) -> Result<(), MemoryError>;

    /// Binds a memory window for a work request; all later packets see the new binding.
    fn bind_window(&self, bind: &WindowBind) -> Result<(), MemoryError>;

    /// Invalidates a local key for a work request.
    fn invalidate_local(&self, rkey: RKey) -> Result<(), MemoryError>;
}

/// A receive work request that a message consumes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Receive {
    /// The program's number for the work request.
    pub wr_id: u64,
    /// The scatter/gather list. The vector is reused, so that taking a receive allocates nothing.
    pub sges: Vec<Sge>,
    /// The shared receive queue that an XRC packet named.
    pub srq: Option<Srqn>,
}

/// The source of receives: the queue pair's own receive queue, or a shared one.
pub trait Receives {
    /// Takes the oldest receive into `into`; returns false when there is none.
    ///
    /// If `into.srq` is set, the receive is taken from that shared receive queue.
    fn take_receive(&mut self, into: &mut Receive) -> bool;

    /// Whether an XRC target may receive from this shared receive queue: both must belong to the
    /// same XRC domain (A14).
    fn has_srq(&self, srq: Srqn) -> bool;

    /// The number of posted receives, for end-to-end credits.
    ///
    /// `None` for a shared receive queue: no queue pair can count on its receives (9.7.7.2).
    fn receive_credits(&self) -> Option<u32>;

    /// Copies `data` into the elements of `receive`, starting `offset` bytes into them.
    ///
    /// Their keys belong to the protection domain of the queue that the receive was taken from. For
    /// a shared receive queue that may differ from the queue pair's (10.2.9.2).
    fn fill_receive(&self, receive: &Receive, offset: u64, data: &[u8]) -> Result<(), MemoryError>;
}

/// An asynchronous event of a queue pair (11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpEvent {
    /// The queue pair entered the error state for a reason that no completion reports.
    Fatal,
    /// The responder refused an invalid request with a NAK.
    RequestError,
    /// The responder refused a request with a NAK because of its memory access.
    AccessError,
    /// A packet arrived in RTR.
    CommunicationEstablished,
    /// The send queue is drained: all that was outstanding at the transition to SQD has completed.
    SendQueueDrained,
    /// The queue pair entered the error state and consumes no more receives from its shared queue.
    LastWqeReached,
    /// The connection migrated to its alternate path.
    PathMigrated,
    /// The peer requested migration to a path that is not the alternate one.
    PathMigrationRefused,
}

/// The receiver of completions and asynchronous events.
pub trait Completions {
    /// Reports the completion of a send work request.
    fn send_completed(&mut self, completion: Completion);

    /// Reports the completion of `receive`.
    ///
    /// `solicited` is true when the last packet requested an event, or when the receive failed.
    fn receive_completed(&mut self, receive: &Receive, completion: Completion, solicited: bool);

    /// Reports an asynchronous event.
    fn event(&mut self, event: QpEvent);
}

/// The whole environment of a state machine, apart from packets and the time.
pub trait Host: Memory + Receives + Completions {}

impl<T: Memory + Receives + Completions> Host for T {}

/// A sink for outgoing packets.
///
/// A sink may be full. The state machine then stops, and its caller calls it again later.
pub trait Transmit {
    /// Reserves room for one packet of `len` bytes, from the BTH to the end of the pad.
    ///
    /// The ICRC is not counted. Returns `None` when the sink is full. The contents of the slice are
    /// unspecified.
    fn stage(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Queues the staged packet for transmission.
    fn commit(&mut self);

    /// Discards the staged packet.
    fn cancel(&mut self);

    /// The current time, as precisely as the sink knows it, for round-trip measurements.
    fn now(&self) -> Time;

    /// The place that the next packet would have in a batch of the sink (GSO), if it had `len`
    /// bytes.
    #[inline]
    fn place_in_batch(&self, len: usize) -> BatchPlace {
        let _ = len;
        BatchPlace::ALONE
    }
}

/// The place of a packet in the packets that a sink passes on as one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchPlace {
    /// Whether it begins a batch.
    pub begins: bool,
    /// Whether no packet of its length joins the batch behind it.
    pub ends: bool,
    /// The most packets of its length in a batch.
    pub capacity: u32,
}

impl BatchPlace {
    /// The place in a sink without batches.
    pub const ALONE: Self = BatchPlace {
        begins: true,
        ends: true,
        capacity: 1,
    };
}
