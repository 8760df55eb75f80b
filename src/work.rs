//! Work requests: what is posted to queue pairs.
#![forbid(unsafe_code)]

use crate::mr::{LocalSlice, LocalWord, RemoteRegion, RemoteWord};
use urxe_driver::qp::QpCap;
use urxe_proto::ids::RKey;
use urxe_proto::wire::Feth;
use urxe_proto::work::{MAX_MESSAGE, SendFlags, SendOp, Sge};

/// Why a work request was not taken. Nothing of it has happened then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// As many as the queue was made for are posted, and their completions have not been taken.
    #[error(
        "the queue is full: take completions of its {capacity} work requests first (an unsignaled \
         one ends with the next signaled one), or make the queue longer"
    )]
    QueueFull {
        /// What the queue was made for.
        capacity: u32,
    },
    /// More pieces of memory than the queue was made for.
    #[error("{given} pieces of memory, but the queue was made for {max} a work request")]
    TooManySlices {
        /// How many were given.
        given: usize,
        /// What the queue was made for.
        max: u32,
    },
    /// More inline data than the queue was made for.
    #[error("{given} bytes of inline data, but the queue was made for {max}")]
    TooMuchInline {
        /// How many bytes were given.
        given: usize,
        /// What the queue was made for.
        max: u32,
    },
    /// A message of more than 2^31 bytes.
    #[error("a message of {given} bytes is longer than {MAX_MESSAGE}: send it in parts")]
    TooLong {
        /// How many bytes were given.
        given: u64,
    },
    /// The memory belongs to another protection domain than the queue pair, or than the shared
    /// receive queue.
    #[error("the memory belongs to another protection domain than what it was posted to")]
    OtherProtectionDomain,
    /// The peer's memory is shorter than the local data.
    #[error("{local} bytes do not fit the {remote} bytes of the peer's memory")]
    RemoteTooShort {
        /// Bytes of the local data.
        local: u64,
        /// Bytes of the peer's memory.
        remote: u64,
    },
    /// What the driver says.
    #[error(transparent)]
    Driver(#[from] urxe_proto::queue::PostError),
}

impl PostError {
    /// The `errno` that a verbs program would get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::QueueFull { .. } | Self::Driver(urxe_proto::queue::PostError::Full) => {
                libc::ENOMEM
            }
            _ => libc::EINVAL,
        }
    }
}

/// Why only some work requests of several were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{posted} work requests were posted, and the next was not: {source}")]
pub struct BatchError {
    /// How many were posted, from the first on.
    pub posted: usize,
    /// What was wrong with the next.
    pub source: PostError,
}

/// The data of a message: pieces of registered memory, read when the packets go, or bytes that are
/// copied at posting and need no registration.
#[derive(Clone, Debug)]
pub enum Data<'a> {
    /// Pieces of registered memory, one after another.
    Slices(Vec<LocalSlice>),
    /// Inline data: at most [`max_inline`](crate::QueuePairBuilder::max_inline) bytes.
    Inline(&'a [u8]),
}

impl Data<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Slices(slices) => slices.iter().map(|slice| slice.len() as u64).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Data::Inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Data<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Data::Inline(bytes)
    }
}

impl From<LocalSlice> for Data<'_> {
    fn from(slice: LocalSlice) -> Self {
        Data::Slices(vec![slice])
    }
}

impl From<Vec<LocalSlice>> for Data<'_> {
    fn from(slices: Vec<LocalSlice>) -> Self {
        Data::Slices(slices)
    }
}

impl<const N: usize> From<[LocalSlice; N]> for Data<'_> {
    fn from(slices: [LocalSlice; N]) -> Self {
        Data::Slices(slices.into())
    }
}

/// Where a message is put: pieces of registered memory, filled one after another.
#[derive(Clone, Debug, Default)]
pub struct Room(Vec<LocalSlice>);

impl From<LocalSlice> for Room {
    fn from(slice: LocalSlice) -> Self {
        Room(vec![slice])
    }
}

impl From<Vec<LocalSlice>> for Room {
    fn from(slices: Vec<LocalSlice>) -> Self {
        Room(slices)
    }
}

impl<const N: usize> From<[LocalSlice; N]> for Room {
    fn from(slices: [LocalSlice; N]) -> Self {
        Room(slices.into())
    }
}

/// A work request for the send queue. (`ibv_send_wr`.)
///
/// It makes a completion, unless [unsignaled](SendRequest::unsignaled).
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct SendRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) data: Data<'a>,
    /// How much of the peer's memory it may touch.
    remote: Option<u64>,
    /// The number of the protection domain of the memory window that it works on.
    window_pd: Option<u64>,
}

impl<'a> SendRequest<'a> {
    fn new(op: SendOp, data: Data<'a>, remote: Option<u64>) -> Self {
        SendRequest {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
            data,
            remote,
            window_pd: None,
        }
    }

    /// What is done to a memory window; `piece` is what it is bound to.
    pub(crate) fn on_window(op: SendOp, piece: Data<'a>, pd: u64) -> Self {
        SendRequest {
            window_pd: Some(pd),
            ..Self::new(op, piece, None)
        }
    }

    /// A message into the peer's next receive. (`IBV_WR_SEND`.)
    pub fn send(data: impl Into<Data<'a>>) -> Self {
        Self::new(SendOp::Send, data.into(), None)
    }

    /// The same, with 32 bits for the completion of the peer's receive. (`IBV_WR_SEND_WITH_IMM`.)
    pub fn send_with_imm(data: impl Into<Data<'a>>, imm: u32) -> Self {
        Self::new(SendOp::SendImm(imm), data.into(), None)
    }

    /// A message into the peer's next receive, with which a key of the peer's is taken back: that of
    /// a memory window that the peer bound to this connection. (`IBV_WR_SEND_WITH_INV`.)
    pub fn send_with_invalidate(data: impl Into<Data<'a>>, key: RKey) -> Self {
        Self::new(SendOp::SendInv(key), data.into(), None)
    }

    /// Data to the start of the peer's memory, of which the peer's program sees nothing.
    /// (`IBV_WR_RDMA_WRITE`.)
    pub fn write(data: impl Into<Data<'a>>, to: &RemoteRegion) -> Self {
        let (addr, rkey) = (to.addr, to.rkey);
        Self::new(SendOp::Write { addr, rkey }, data.into(), Some(to.len))
    }

    /// The same, and a receive of the peer's completes with 32 bits.
    /// (`IBV_WR_RDMA_WRITE_WITH_IMM`.)
    pub fn write_with_imm(data: impl Into<Data<'a>>, to: &RemoteRegion, imm: u32) -> Self {
        let (addr, rkey) = (to.addr, to.rkey);
        let op = SendOp::WriteImm { addr, rkey, imm };
        Self::new(op, data.into(), Some(to.len))
    }

    /// Data from the start of the peer's memory, as much as there is room for. (`IBV_WR_RDMA_READ`.)
    pub fn read(into: impl Into<Room>, from: &RemoteRegion) -> Self {
        let (addr, rkey) = (from.addr, from.rkey);
        let room = Data::Slices(into.into().0);
        Self::new(SendOp::Read { addr, rkey }, room, Some(from.len))
    }

    /// Puts `swap` into a word of the peer's if it holds `compare`. What it held goes to `result`.
    /// The numbers are in the byte order of the hosts. (`IBV_WR_ATOMIC_CMP_AND_SWP`.)
    pub fn compare_swap(result: &LocalWord, word: RemoteWord, compare: u64, swap: u64) -> Self {
        let op = SendOp::CompareSwap {
            addr: word.addr(),
            rkey: word.rkey(),
            compare,
            swap,
        };
        Self::new(op, result.as_slice().clone().into(), None)
    }

    /// Adds to a word of the peer's, modulo 2^64. What it held goes to `result`.
    /// (`IBV_WR_ATOMIC_FETCH_AND_ADD`.)
    pub fn fetch_add(result: &LocalWord, word: RemoteWord, add: u64) -> Self {
        let op = SendOp::FetchAdd {
            addr: word.addr(),
            rkey: word.rkey(),
            add,
        };
        Self::new(op, result.as_slice().clone().into(), None)
    }

    /// Writes a word of the peer's at once: nobody sees a part of it. The number is in the byte order
    /// of this host. (`ibv_wr_atomic_write`.)
    ///
    /// It takes [`RemoteAccess::WRITE`](crate::RemoteAccess::WRITE).
    pub fn atomic_write(word: RemoteWord, value: u64) -> Self {
        let op = SendOp::AtomicWrite {
            addr: word.addr(),
            rkey: word.rkey(),
            value: value.to_ne_bytes(),
        };
        Self::new(op, Data::Slices(Vec::new()), None)
    }

    /// Completes when what this queue pair wrote before to the peer's memory can be seen by all of
    /// its processors. (`ibv_wr_flush` with `IBV_FLUSH_GLOBAL`.)
    ///
    /// It takes [`RemoteAccess::FLUSH`](crate::RemoteAccess::FLUSH).
    ///
    /// Regions of 4 GiB and more are flushed as a whole, as no request tells such a length.
    pub fn flush(region: &RemoteRegion) -> Self {
        let len = u32::try_from(region.len);
        let how = match len {
            Ok(_) => Feth::GLOBAL_VISIBILITY,
            Err(_) => Feth::GLOBAL_VISIBILITY | Feth::WHOLE_REGION,
        };
        let op = SendOp::Flush {
            addr: region.addr,
            rkey: region.rkey,
            len: len.unwrap_or(0),
            how,
        };
        Self::new(op, Data::Slices(Vec::new()), None)
    }

    /// Gives it a number, 0 otherwise, which its completion has. (`wr_id`.)
    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Lets it wait until every earlier READ and atomic of the queue has completed.
    /// (`IBV_SEND_FENCE`.)
    pub fn fence(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }

    /// Makes the peer's completion one that
    /// [`arm_solicited`](crate::CompletionQueue::arm_solicited) waits for. (`IBV_SEND_SOLICITED`.)
    pub fn solicited(mut self) -> Self {
        self.flags |= SendFlags::SOLICITED;
        self
    }

    /// Makes no completion if it succeeds. Its place in the queue becomes free with the completion
    /// of a later one that is signaled. (Without `IBV_SEND_SIGNALED`.)
    pub fn unsignaled(mut self) -> Self {
        self.flags -= SendFlags::SIGNALED;
        self
    }

    /// Whether a queue pair of this protection domain and capacity can take it.
    pub(crate) fn check(&self, pd: u64, cap: &QpCap) -> Result<(), PostError> {
        if self.window_pd.is_some_and(|window| window != pd) {
            return Err(PostError::OtherProtectionDomain);
        }
        match &self.data {
            // What a window is bound to is no data.
            Data::Slices(slices) if self.op.is_local() => check_slices(slices, pd, u32::MAX)?,
            Data::Slices(slices) => check_slices(slices, pd, cap.max_send_sge)?,
            Data::Inline(bytes) if bytes.len() > cap.max_inline as usize => {
                return Err(PostError::TooMuchInline {
                    given: bytes.len(),
                    max: cap.max_inline,
                });
            }
            Data::Inline(_) => {}
        }
        let given = match self.op.is_local() {
            true => 0,
            false => self.data.len(),
        };
        if given > MAX_MESSAGE {
            return Err(PostError::TooLong { given });
        }
        match self.remote {
            Some(remote) if given > remote => Err(PostError::RemoteTooShort {
                local: given,
                remote,
            }),
            _ => Ok(()),
        }
    }
}

/// A work request for the receive queue: room for one message of the peer's. (`ibv_recv_wr`.)
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct ReceiveRequest {
    pub(crate) wr_id: u64,
    pub(crate) slices: Vec<LocalSlice>,
}

impl ReceiveRequest {
    /// For a message that goes here. A longer message is an error on both sides.
    pub fn into(room: impl Into<Room>) -> Self {
        ReceiveRequest {
            wr_id: 0,
            slices: room.into().0,
        }
    }

    /// For what brings no data: empty messages, and writes with immediate data.
    pub fn empty() -> Self {
        Self::into(Room::default())
    }

    /// Gives it a number, 0 otherwise, which its completion has. (`wr_id`.)
    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Whether a queue of this protection domain, with so many pieces a receive, can take it.
    pub(crate) fn check(&self, pd: u64, max_sge: u32) -> Result<(), PostError> {
        check_slices(&self.slices, pd, max_sge)
    }
}

fn check_slices(slices: &[LocalSlice], pd: u64, max: u32) -> Result<(), PostError> {
    if slices.len() > max as usize {
        return Err(PostError::TooManySlices {
            given: slices.len(),
            max,
        });
    }
    if slices.iter().any(|slice| slice.pd() != pd) {
        return Err(PostError::OtherProtectionDomain);
    }
    Ok(())
}

/// The driver's elements for slices, in the array that is lent for it.
pub(crate) fn elements<'a>(slices: &[LocalSlice], into: &'a mut [Sge]) -> &'a [Sge] {
    let mut used = 0;
    for (element, slice) in into.iter_mut().zip(slices) {
        *element = slice.sge();
        used += 1;
    }
    &into[..used]
}
