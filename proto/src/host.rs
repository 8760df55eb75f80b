//! What a state machine asks of its surroundings.
//!
//! The driver implements these traits over the program's memory and real queues, the simulator over
//! plain vectors. Each answer is about this moment: a key that was valid for one packet may be gone
//! for the next, so nothing about memory is remembered between calls.

use crate::ids::{LKey, RKey, Srqn};
use crate::time::Time;
use crate::work::{Completion, Sge};
use bitflags::bitflags;

bitflags! {
    /// What may be done to a memory region; the bits of `enum ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub struct Access: u32 {
        /// This end may write to it: receives, READ responses, results of atomics.
        const LOCAL_WRITE = 1 << 0;
        /// The peer may write to it.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read it.
        const REMOTE_READ = 1 << 2;
        /// The peer may do atomics on it.
        const REMOTE_ATOMIC = 1 << 3;
        /// A memory window may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses count from its start.
        const ZERO_BASED = 1 << 5;
        /// Pages need not be present at registration.
        const ON_DEMAND = 1 << 6;
        /// Advice: huge pages lie behind it.
        const HUGETLB = 1 << 7;
        /// The peer may flush it globally.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may flush it to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible in any order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Why memory could not be reached. What follows from it depends on who asked: a completion with a
/// local protection error, or a NAK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// No region has this key, or one of another protection domain.
    #[error("no memory region of this protection domain has the key")]
    Key,
    /// The region does not grant this kind of access.
    #[error("the memory region does not grant this access")]
    Permission,
    /// Part of the range lies outside the region.
    #[error("the range lies outside the memory region")]
    Range,
    /// There is no memory behind part of the range, or not with these rights.
    #[error("part of the range is not mapped, or may not be written")]
    Fault,
    /// The memory window is of a kind, or in a state, that does not allow it.
    #[error("the memory window's type or state does not allow this")]
    Window,
}

/// What binding a memory window asks for (10.6.7.2, 11.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBind {
    /// The window's key as it is now.
    pub window: RKey,
    /// The low 8 bits are those that the window's key shall have from now on.
    pub new_key: RKey,
    /// The region to bind it to; not looked at when `len` is 0.
    pub region: LKey,
    /// The first byte, by the region's own addresses.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What the peer may do through it, and whether its addresses count from its start.
    pub access: Access,
}

/// An operation on 8 aligned bytes in the host's byte order that nobody sees half done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Put `swap` there if `compare` is there.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// What to put.
        swap: u64,
    },
    /// Add modulo 2^64.
    FetchAdd(u64),
    /// Put this there: ATOMIC WRITE (A19).
    Store(u64),
}

impl AtomicOp {
    /// The right that a peer needs for it.
    pub const fn access(self) -> Access {
        match self {
            Self::CompareSwap { .. } | Self::FetchAdd(_) => Access::REMOTE_ATOMIC,
            Self::Store(_) => Access::REMOTE_WRITE,
        }
    }
}

/// A key by which a packet names memory, and whose protection domain it must be of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteKey {
    /// The key.
    pub rkey: RKey,
    /// The shared receive queue whose protection domain it is; `None` for the queue pair's. The
    /// target of an extended reliable connection has none: it serves all who have a queue in its
    /// domain, and each packet says whom (A14).
    pub srq: Option<Srqn>,
}

impl From<RKey> for RemoteKey {
    fn from(rkey: RKey) -> Self {
        RemoteKey { rkey, srq: None }
    }
}

/// The memory that a queue pair may reach: that of its protection domain.
pub trait Memory {
    /// Whether all of `sges` may be read (or, with [`Access::LOCAL_WRITE`], written) now.
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), MemoryError>;

    /// Copies `out.len()` bytes that start `offset` bytes into the list of elements.
    fn gather(&self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `data` to where `offset` bytes into the list of elements lie.
    fn scatter(&self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError>;

    /// Whether the peer may do `access` to `len` bytes at `addr` now.
    fn check_remote(
        &self,
        key: RemoteKey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), MemoryError>;

    /// The peer reads. Checks what [`Memory::check_remote`] checks.
    fn remote_read(&self, key: RemoteKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// The peer writes. Checks what [`Memory::check_remote`] checks.
    fn remote_write(&self, key: RemoteKey, addr: u64, data: &[u8]) -> Result<(), MemoryError>;

    /// The peer's atomic; `addr` is a multiple of 8. Returns what was there before. It is atomic
    /// against the program's own atomics on the same 8 bytes.
    fn remote_atomic(&self, key: RemoteKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError>;

    /// The peer's FLUSH: what it wrote before to `range`, an address and bytes, or anywhere in the
    /// region, goes where `access` says it may ask for (A19).
    fn flush(
        &self,
        key: RemoteKey,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), MemoryError>;

    /// The peer's SEND with invalidate takes away a key.
    fn invalidate(&self, key: RemoteKey) -> Result<(), MemoryError>;

    /// A work request binds a memory window; all later packets see it bound.
    fn bind_window(&self, bind: &WindowBind) -> Result<(), MemoryError>;

    /// A work request takes away a key of this end.
    fn invalidate_local(&self, rkey: RKey) -> Result<(), MemoryError>;
}

/// A receive work request that a message has taken from its queue.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Receive {
    /// The program's own number for it.
    pub wr_id: u64,
    /// Where the message goes. The vector is kept and filled anew, so that taking a receive
    /// allocates nothing.
    pub sges: Vec<Sge>,
    /// The shared receive queue that a packet of an extended reliable connection named.
    pub srq: Option<Srqn>,
}

/// Where receives come from: a queue pair's own queue, or a shared one.
pub trait Receives {
    /// Takes the oldest receive into `into`; false when there is none. If `into.srq` is given, it is
    /// taken from that shared queue.
    fn take_receive(&mut self, into: &mut Receive) -> bool;

    /// Whether the target of an extended reliable connection may receive from this shared queue:
    /// whether it belongs to the same domain (A14).
    fn has_srq(&self, srq: Srqn) -> bool;

    /// How many there are, for end-to-end credits; `None` for a shared queue, whose receives no
    /// queue pair can count on (9.7.7.2).
    fn receive_credits(&self) -> Option<u32>;

    /// Copies `data` to where `offset` bytes into the elements of `receive` lie. Their keys are of the protection domain of the queue that it came from, which for a
    /// shared one need not be the queue pair's (10.2.9.2).
    fn fill_receive(&self, receive: &Receive, offset: u64, data: &[u8]) -> Result<(), MemoryError>;
}

/// What happens to a queue pair without a work request to complete (11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpEvent {
    /// It went to error for a reason that no completion can tell.
    Fatal,
    /// A request made no sense; the peer got a NAK for it.
    RequestError,
    /// A request lacked the right to memory; the peer got a NAK for it.
    AccessError,
    /// A packet arrived in RTR.
    CommunicationEstablished,
    /// All that was outstanding when it went to SQD has completed.
    SendQueueDrained,
    /// It went to error, and no more completions of receives from the shared queue will come.
    LastWqeReached,
    /// The connection went over to its alternate path.
    PathMigrated,
    /// The peer asked to migrate to a path that is not the alternate one.
    PathMigrationRefused,
}

/// Where completions and events go.
pub trait Completions {
    /// A send work request ended.
    fn send_completed(&mut self, completion: Completion);

    /// `receive` ended. `solicited` is whether its last packet asked for an event (or it failed).
    fn receive_completed(&mut self, receive: &Receive, completion: Completion, solicited: bool);

    /// Something else happened.
    fn event(&mut self, event: QpEvent);
}

/// All that a state machine needs beside the packets and the time.
pub trait Host: Memory + Receives + Completions {}

impl<T: Memory + Receives + Completions> Host for T {}

/// Where packets go. A sink may be full: then the state machine stops and is asked again later.
pub trait Transmit {
    /// Room for one packet of `len` bytes from the BTH to the end of the pad, the ICRC not
    /// counted. `None` when nothing more can be taken now. The bytes hold nothing of meaning.
    fn stage(&mut self, len: usize) -> Option<&mut [u8]>;

    /// The packet staged last is complete and goes out.
    fn commit(&mut self);

    /// The packet staged last shall not go out.
    fn cancel(&mut self);

    /// The time, as exact as the sink knows it: for measuring round trips.
    fn now(&self) -> Time;
}
