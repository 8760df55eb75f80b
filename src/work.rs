//! Work requests, which are posted to queue pairs and shared receive queues.
#![forbid(unsafe_code)]

use crate::buffer::{Extent, LocalBuffer};
use crate::mr::{LocalSlice, LocalWord, RemoteRegion, RemoteWord};
use crate::slices::{Memory, SliceList};
use crate::work_ring::Kind;

pub use crate::post_error::PostError;
use urxe_driver::qp::QpCap;
use urxe_proto::ids::RKey;
use urxe_proto::wire::Feth;
use urxe_proto::work::{MAX_MESSAGE, SendFlags, SendOp};

/// Not all work requests of a batch were posted.
///
/// ```
/// # use urxe::prelude::*;
/// let (a, b) = urxe::testing::pair()?;
/// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
/// let error = a.post_sends([
///     SendRequest::write(b"fits", &memory.remote()),
///     SendRequest::write(b"does not fit", &memory.remote()),
/// ]).unwrap_err();
/// assert_eq!(error.posted, 1);
/// println!("{error}");
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{posted} work requests were posted, and the next was not: {source}")]
#[non_exhaustive]
pub struct BatchError {
    /// The number of work requests that were posted, from the first on.
    pub posted: usize,
    /// The error of the next one.
    pub source: PostError,
}

/// The data of an outgoing message.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::SendData;
///
/// let (a, b) = urxe::testing::pair()?;
/// fn message(small: bool, pd: &ProtectionDomain) -> urxe::Result<SendData<'static>> {
///     Ok(match small {
///         true => SendData::Inline(b"hello"),
///         false => SendData::Buffer(pd.buffer(4096)?),
///     })
/// }
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(4096)?))?;
/// a.post_send(SendRequest::send(message(false, a.pd())?))?;
/// assert_eq!(b.cq().wait()?.result?.byte_len, 4096);
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum SendData<'a> {
    /// A gather list of registered memory, which is read when the packets are sent.
    Slices(SliceList),
    /// A buffer, which the completion returns.
    Buffer(LocalBuffer),
    /// Inline data, which is copied when it is posted and needs no registration. At most
    /// [`max_inline`](crate::QueuePairBuilder::max_inline) bytes.
    Inline(&'a [u8]),
}

impl<'a> From<&'a [u8]> for SendData<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        SendData::Inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for SendData<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        SendData::Inline(bytes)
    }
}

impl From<LocalSlice> for SendData<'_> {
    #[inline]
    fn from(slice: LocalSlice) -> Self {
        SendData::Slices(slice.into())
    }
}

impl From<LocalBuffer> for SendData<'_> {
    #[inline]
    fn from(buffer: LocalBuffer) -> Self {
        SendData::Buffer(buffer)
    }
}

impl From<Vec<LocalSlice>> for SendData<'_> {
    fn from(slices: Vec<LocalSlice>) -> Self {
        SendData::Slices(slices.into())
    }
}

impl<const N: usize> From<[LocalSlice; N]> for SendData<'_> {
    fn from(slices: [LocalSlice; N]) -> Self {
        SendData::Slices(slices.into())
    }
}

/// Registered memory that incoming data fills: slices in order, or a buffer.
///
/// ```
/// # use urxe::prelude::*;
/// use urxe::ScatterList;
///
/// let (a, b) = urxe::testing::pair()?;
/// let list = ScatterList::from(b.pd().buffer(64)?);
/// b.post_receive(ReceiveRequest::into(list))?;
/// a.post_send(SendRequest::send(b"hello"))?;
/// assert_eq!(b.cq().wait()?.data()?, b"hello");
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct ScatterList(Memory);

impl From<LocalSlice> for ScatterList {
    #[inline]
    fn from(slice: LocalSlice) -> Self {
        ScatterList(Memory::Slices(slice.into()))
    }
}

impl From<LocalBuffer> for ScatterList {
    #[inline]
    fn from(buffer: LocalBuffer) -> Self {
        ScatterList(Memory::Buffer(buffer))
    }
}

impl From<Vec<LocalSlice>> for ScatterList {
    fn from(slices: Vec<LocalSlice>) -> Self {
        ScatterList(Memory::Slices(slices.into()))
    }
}

impl<const N: usize> From<[LocalSlice; N]> for ScatterList {
    fn from(slices: [LocalSlice; N]) -> Self {
        ScatterList(Memory::Slices(slices.into()))
    }
}

/// A work request for the send queue. (`ibv_send_wr`.)
///
/// It makes a completion unless it succeeds and is [unsignaled](SendRequest::unsignaled).
///
/// ```
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// let there = pd.register(64, RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::FLUSH)?;
/// let remote = there.remote();
/// let here = pd.register(16, RemoteAccess::empty())?;
/// here.write(0, b"gathered data")?;
/// a.post_sends([
///     // Inline data needs no registration.
///     SendRequest::write(b"inline", &remote.slice(32..)?).unsignaled(),
///     // A gather list:
///     SendRequest::write([here.slice(..8)?, here.slice(8..13)?], &remote).unsignaled(),
///     SendRequest::atomic_write(remote.word(56)?, 1).unsignaled(),
///     SendRequest::flush(&remote).unsignaled(),
///     // The fence lets it start after earlier READs and atomics.
///     SendRequest::read(here.slice(..6)?, &remote.slice(32..)?).fence().id(9),
/// ])?;
/// let completion = cq.wait()?;
/// assert_eq!((completion.wr_id, completion.data()?), (9, b"inline".to_vec()));
/// assert_eq!(there.to_vec(..13)?, b"gathered data");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a work request does nothing until it is posted"]
pub struct SendRequest<'a> {
    pub(crate) operation: SendOperation<'a>,
    pub(crate) memory: Memory,
}

/// A [`SendRequest`] without its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendOperation<'a> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    /// Inline data, in place of the memory.
    pub(crate) inline: Option<&'a [u8]>,
    /// The length of the peer's memory that it may access.
    remote: Option<u64>,
    /// The number of the protection domain of the memory window that it binds or invalidates.
    window_pd: Option<u64>,
}

impl<'a> SendRequest<'a> {
    #[inline]
    fn new(op: SendOp, data: SendData<'a>, remote: Option<u64>) -> Self {
        let (memory, inline) = match data {
            SendData::Slices(slices) => (Memory::Slices(slices), None),
            SendData::Buffer(buffer) => (Memory::Buffer(buffer), None),
            SendData::Inline(bytes) => (Memory::default(), Some(bytes)),
        };
        let operation = SendOperation {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
            inline,
            remote,
            window_pd: None,
        };
        SendRequest { operation, memory }
    }

    /// A bind or invalidation of a memory window; `slice` is the memory to bind it to.
    pub(crate) fn on_window(op: SendOp, slice: SendData<'a>, pd: u64) -> Self {
        let mut request = Self::new(op, slice, None);
        request.operation.window_pd = Some(pd);
        request
    }

    /// Sends a message into the peer's next receive. (`IBV_WR_SEND`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn send(data: impl Into<SendData<'a>>) -> Self {
        Self::new(SendOp::Send, data.into(), None)
    }

    /// Sends a message with 32 bits of immediate data, which the peer's completion carries.
    /// (`IBV_WR_SEND_WITH_IMM`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// a.post_send(SendRequest::send_with_imm(b"", 42))?;
    /// assert_eq!(b.cq().wait()?.result?.imm, Some(42));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn send_with_imm(data: impl Into<SendData<'a>>, imm: u32) -> Self {
        Self::new(SendOp::SendImm(imm), data.into(), None)
    }

    /// Sends a message that also invalidates a remote key. (`IBV_WR_SEND_WITH_INV`.)
    ///
    /// `key` is that of a memory window that the peer bound on this connection.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::WindowType;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(64, RemoteAccess::empty())?;
    /// let window = b.pd().window(WindowType::Two);
    /// let (bind, remote) = window.bind(memory.slice(..)?, RemoteAccess::WRITE);
    /// b.post_send(bind)?;
    /// b.cq().wait()?.result?;
    ///
    /// b.post_receive(ReceiveRequest::empty())?;
    /// a.post_sends([
    ///     SendRequest::write(b"hello", &remote),
    ///     // The window is no longer needed.
    ///     SendRequest::send_with_invalidate(b"", remote.rkey),
    /// ])?;
    /// assert_eq!(b.cq().wait()?.result?.invalidated, Some(remote.rkey));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn send_with_invalidate(data: impl Into<SendData<'a>>, key: RKey) -> Self {
        Self::new(SendOp::SendInv(key), data.into(), None)
    }

    /// Writes data to the start of the peer's memory; the peer's program is not notified.
    /// (`IBV_WR_RDMA_WRITE`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(64, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(b"hello", &memory.remote()))?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(memory.to_vec(..5)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn write(data: impl Into<SendData<'a>>, to: &RemoteRegion) -> Self {
        let (addr, rkey) = (to.addr, to.rkey);
        Self::new(SendOp::Write { addr, rkey }, data.into(), Some(to.len))
    }

    /// Writes data like [`SendRequest::write`], and completes a receive of the peer with 32 bits of
    /// immediate data. (`IBV_WR_RDMA_WRITE_WITH_IMM`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(64, RemoteAccess::WRITE)?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// a.post_send(SendRequest::write_with_imm(b"hello", &memory.remote(), 42))?;
    /// let done = b.cq().wait()?.result?;
    /// assert_eq!((done.imm, memory.to_vec(..5)?), (Some(42), b"hello".to_vec()));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn write_with_imm(data: impl Into<SendData<'a>>, to: &RemoteRegion, imm: u32) -> Self {
        let (addr, rkey) = (to.addr, to.rkey);
        let op = SendOp::WriteImm { addr, rkey, imm };
        Self::new(op, data.into(), Some(to.len))
    }

    /// Reads from the start of the peer's memory until `into` is full. (`IBV_WR_RDMA_READ`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register_vec(b"hello".to_vec(), RemoteAccess::READ)?;
    /// a.post_send(SendRequest::read(a.pd().buffer(5)?, &memory.remote()))?;
    /// assert_eq!(a.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn read(into: impl Into<ScatterList>, from: &RemoteRegion) -> Self {
        let (addr, rkey) = (from.addr, from.rkey);
        let data = SendData::Slices(SliceList::default());
        SendRequest {
            memory: into.into().0,
            ..Self::new(SendOp::Read { addr, rkey }, data, Some(from.len))
        }
    }

    /// Stores `swap` in the peer's word if that equals `compare`; stores the old value in `result`.
    /// (`IBV_WR_ATOMIC_CMP_AND_SWP`.)
    ///
    /// Each host interprets the values in its own byte order.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::sync::atomic::Ordering;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let lock = b.pd().register(8, RemoteAccess::ATOMIC)?;
    /// let old = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
    /// a.post_send(SendRequest::compare_swap(&old, lock.remote().word(0)?, 0, 1))?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(old.load(Ordering::Acquire), 0);
    /// assert_eq!(lock.word(0)?.load(Ordering::Acquire), 1);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn compare_swap(result: &LocalWord, word: RemoteWord, compare: u64, swap: u64) -> Self {
        let op = SendOp::CompareSwap {
            addr: word.addr(),
            rkey: word.rkey(),
            compare,
            swap,
        };
        Self::new(op, result.as_slice().clone().into(), None)
    }

    /// Adds `add` to the peer's word, modulo 2^64; stores the old value in `result`.
    /// (`IBV_WR_ATOMIC_FETCH_AND_ADD`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::sync::atomic::Ordering;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let counter = b.pd().register(8, RemoteAccess::ATOMIC)?;
    /// let old = a.pd().register(8, RemoteAccess::empty())?.word(0)?;
    /// a.post_send(SendRequest::fetch_add(&old, counter.remote().word(0)?, 5))?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(counter.word(0)?.load(Ordering::Acquire), 5);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn fetch_add(result: &LocalWord, word: RemoteWord, add: u64) -> Self {
        let op = SendOp::FetchAdd {
            addr: word.addr(),
            rkey: word.rkey(),
            add,
        };
        Self::new(op, result.as_slice().clone().into(), None)
    }

    /// Writes the peer's word as a single access, so that no partial value is visible.
    /// (`ibv_wr_atomic_write`.)
    ///
    /// The value is in the byte order of this host. The region must permit
    /// [`RemoteAccess::WRITE`](crate::RemoteAccess::WRITE).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::sync::atomic::Ordering;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let flag = b.pd().register(8, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::atomic_write(flag.remote().word(0)?, 1))?;
    /// a.cq().wait()?.result?;
    /// assert_ne!(flag.word(0)?.load(Ordering::Acquire), 0);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn atomic_write(word: RemoteWord, value: u64) -> Self {
        let op = SendOp::AtomicWrite {
            addr: word.addr(),
            rkey: word.rkey(),
            value: value.to_ne_bytes(),
        };
        Self::new(op, SendData::Slices(SliceList::default()), None)
    }

    /// Completes when the queue pair's earlier WRITEs are visible to all processors of the peer.
    /// (`ibv_wr_flush` with `IBV_FLUSH_GLOBAL`.)
    ///
    /// The region must permit [`RemoteAccess::FLUSH`](crate::RemoteAccess::FLUSH).
    ///
    /// A region of 4 GiB or more is flushed as a whole, as the length field has 32 bits.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(64, RemoteAccess::WRITE | RemoteAccess::FLUSH)?;
    /// let remote = memory.remote();
    /// a.post_sends([
    ///     SendRequest::write(b"hello", &remote).unsignaled(),
    ///     SendRequest::flush(&remote),
    /// ])?;
    /// a.cq().wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
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
        Self::new(op, SendData::Slices(SliceList::default()), None)
    }

    /// Sets the identifier that the completion carries; the default is 0. (`wr_id`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(b"hello", &memory.remote()).id(7))?;
    /// assert_eq!(a.cq().wait()?.wr_id, 7);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[inline]
    pub fn id(mut self, wr_id: u64) -> Self {
        self.operation.wr_id = wr_id;
        self
    }

    /// Starts only when all earlier READs and atomics of the queue have completed.
    /// (`IBV_SEND_FENCE`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let access = RemoteAccess::READ | RemoteAccess::WRITE;
    /// let memory = b.pd().register_vec(b"old".to_vec(), access)?;
    /// let copy = a.pd().register(3, RemoteAccess::empty())?;
    /// a.post_sends([
    ///     SendRequest::read(copy.slice(..)?, &memory.remote()).unsignaled(),
    ///     // Sends the copy back after the READ has filled it.
    ///     SendRequest::write(copy.slice(..)?, &memory.remote()).fence(),
    /// ])?;
    /// a.cq().wait()?.result?;
    /// assert_eq!(memory.to_vec(..)?, b"old");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[inline]
    pub fn fence(mut self) -> Self {
        self.operation.flags |= SendFlags::FENCE;
        self
    }

    /// Makes the peer's completion a solicited one. (`IBV_SEND_SOLICITED`.)
    ///
    /// See [`CompletionQueue::arm_solicited`](crate::CompletionQueue::arm_solicited).
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// b.cq().arm_solicited();
    /// a.post_send(SendRequest::send(b"urgent").solicited())?;
    /// // Sleeps until the notification, which the message causes because it is solicited.
    /// poll(&mut [PollFd::new(b.cq(), PollFlags::IN)], None).map_err(std::io::Error::from)?;
    /// assert!(b.cq().clear()?);
    /// assert_eq!(b.cq().poll().expect("it has arrived").data()?, b"urgent");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.operation.flags |= SendFlags::SOLICITED;
        self
    }

    /// Makes no completion on success. (Without `IBV_SEND_SIGNALED`.)
    ///
    /// Its place in the queue becomes free with the completion of a later signaled work request.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// a.post_sends([
    ///     SendRequest::write(b"one", &memory.remote()).id(1).unsignaled(),
    ///     SendRequest::write(b"two", &memory.remote()).id(2),
    /// ])?;
    /// // The completion of the second means that the first has completed too.
    /// assert_eq!(a.cq().wait()?.wr_id, 2);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[inline]
    pub fn unsignaled(mut self) -> Self {
        self.operation.flags -= SendFlags::SIGNALED;
        self
    }

    /// Makes a completion in any case.
    pub(crate) fn signaled(mut self) -> Self {
        self.operation.flags |= SendFlags::SIGNALED;
        self
    }

    /// Checks it against the protection domain and the capacity of a queue pair.
    #[inline(always)]
    pub(crate) fn check(&self, pd: u64, cap: &QpCap) -> Result<(), PostError> {
        self.operation.check(&self.memory, pd, cap)
    }
}

impl SendOperation<'_> {
    /// How it completes, if no future awaits it.
    pub(crate) fn kind(&self) -> Kind {
        match self.flags.contains(SendFlags::SIGNALED) {
            true => Kind::Signaled,
            false => Kind::Unsignaled,
        }
    }

    /// Checks it, with the memory of its request, against the protection domain and the capacity of
    /// a queue pair.
    #[inline(always)]
    fn check(&self, memory: &Memory, pd: u64, cap: &QpCap) -> Result<(), PostError> {
        if self.window_pd.is_some_and(|window| window != pd) {
            return Err(PostError::OtherProtectionDomain);
        }
        if self.op.is_local() {
            // The memory that a window is bound to is not message data.
            return memory.check(pd, u32::MAX);
        }
        memory.check(pd, cap.max_send_sge)?;
        let given = match self.inline {
            Some(bytes) if bytes.len() > cap.max_inline as usize => {
                return Err(PostError::TooMuchInline {
                    given: bytes.len(),
                    max: cap.max_inline,
                });
            }
            Some(bytes) => bytes.len() as u64,
            None => memory.len(Extent::Length),
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

/// A work request for a receive queue: the memory for one incoming message. (`ibv_recv_wr`.)
///
/// ```
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// let memory = pd.register(64, RemoteAccess::empty())?;
/// b.post_receive(ReceiveRequest::into([memory.slice(..4)?, memory.slice(32..)?]).id(1))?;
/// b.post_receive(ReceiveRequest::into(pd.buffer(64)?).id(2))?;
/// // For messages without data, and WRITEs with immediate data:
/// b.post_receive(ReceiveRequest::empty().id(3))?;
/// for message in ["scattered", "whole", ""] {
///     a.post_send(SendRequest::send(message.as_bytes()).unsignaled())?;
///     assert_eq!(cq.wait()?.data()?, message.as_bytes());
/// }
/// assert_eq!(memory.to_vec(32..37)?, b"tered");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a work request does nothing until it is posted"]
pub struct ReceiveRequest {
    pub(crate) wr_id: u64,
    pub(crate) memory: Memory,
}

impl ReceiveRequest {
    /// Receives a message into this memory. A longer message is an error at both ends.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// let buffer = b.cq().wait()?.buffer.expect("the receive had a buffer");
    /// assert_eq!(*buffer, *b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn into(buffers: impl Into<ScatterList>) -> Self {
        ReceiveRequest {
            wr_id: 0,
            memory: buffers.into().0,
        }
    }

    /// Receives a message without data, or a WRITE with immediate data.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// a.post_send(SendRequest::send_with_imm(b"", 42))?;
    /// assert_eq!(b.cq().wait()?.result?.imm, Some(42));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn empty() -> Self {
        Self::into(ScatterList::default())
    }

    /// Sets the identifier that the completion carries; the default is 0. (`wr_id`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?).id(7))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().wait()?.wr_id, 7);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    #[inline]
    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }
}
