//! Completions: the results of work requests.
#![forbid(unsafe_code)]

use crate::buffer::LocalBuffer;
use crate::slices::{Memory, SliceList};
use crate::work_ring::Entry;
use urxe_proto::ids::{Gid, Qpn, RKey};
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Grh;
use urxe_proto::work::{self, Extra, WcOpcode, WcStatus};

pub use crate::work_ring::WorkQueue;

/// The result of a work request. (`ibv_wc`.)
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
/// b.post_receive(ReceiveRequest::into(pd.buffer(64)?).id(7))?;
/// a.post_send(SendRequest::send_with_imm(b"hello", 42).unsignaled())?;
/// let completion = cq.wait()?;
/// assert_eq!((completion.wr_id, completion.qpn), (7, b.qpn()));
/// assert_eq!(completion.queue, urxe::WorkQueue::Receive);
/// let done = completion.result?;
/// assert_eq!((done.byte_len, done.imm), (5, Some(42)));
/// assert_eq!(completion.data()?, b"hello");
/// // The buffer itself, without a copy:
/// let buffer = completion.buffer.expect("the receive had a buffer");
/// assert_eq!(*buffer, *b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The identifier that the program gave the work request.
    pub wr_id: u64,
    /// The queue pair that the work request was posted to or, for a receive, consumed by.
    pub qpn: Qpn,
    /// The queue of the work request.
    pub queue: WorkQueue,
    /// The memory slices of the work request. They stay registered until this is dropped.
    pub buffers: SliceList,
    /// The buffer of the work request. After a receive its length is that of the received data, or
    /// 0 on an error.
    pub buffer: Option<LocalBuffer>,
    /// The details of a success, or the error.
    pub result: Result<Done, WorkError>,
}

/// The details of a successful work request.
///
/// ```
/// # use urxe::prelude::*;
/// let (a, b) = urxe::testing::pair()?;
/// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
/// a.post_send(SendRequest::send_with_imm(b"hello", 42))?;
/// let done = b.cq().wait()?.result?;
/// assert_eq!((done.byte_len, done.imm), (5, Some(42)));
/// assert_eq!(done.opcode, urxe::WcOpcode::Recv);
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Done {
    /// The operation.
    pub opcode: WcOpcode,
    /// The number of bytes received or read.
    pub byte_len: u32,
    /// The immediate data of the message.
    pub imm: Option<u32>,
    /// The remote key of this host that the peer invalidated with the message.
    pub invalidated: Option<RKey>,
    /// The sending queue pair of a datagram; its address is returned by [`Completion::sender`].
    pub src_qp: Option<Qpn>,
}

/// The bytes at the start of a datagram's receive buffer that hold a header instead of data.
///
/// ```
/// # use urxe::prelude::*;
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
/// # let (a, b) = (qp()?, qp()?);
/// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
/// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello").unsignaled())?;
/// let received = cq.wait()?.buffer.expect("the receive had a buffer");
/// assert_eq!(received[GRH_BYTES..], *b"hello");
/// # Ok::<(), urxe::Error>(())
/// ```
pub const GRH_BYTES: usize = Grh::LEN;

/// The sender of a datagram.
///
/// ```
/// # use urxe::prelude::*;
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
/// # let (a, b) = (qp()?, qp()?);
/// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
/// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello").unsignaled())?;
/// let sender = cq.wait()?.sender().expect("it is a datagram");
/// assert_eq!((sender.gid, sender.qpn), (a.address().gid, a.qpn()));
/// assert_eq!(sender.sent_to, b.address().gid);
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Sender {
    /// The sender's address.
    pub gid: Gid,
    /// The sending queue pair.
    pub qpn: Qpn,
    /// The destination address: one of this host's, or a multicast group.
    pub sent_to: Gid,
}

/// The error of a work request.
///
/// The queue pair is now in the error state: outstanding work requests are flushed, and it must be
/// [reset](crate::QueuePair::reset) or replaced. A failed send of an unreliable service leads to
/// the SQE state instead, from which [`QueuePair::resume`](crate::QueuePair::resume) and
/// [`DatagramQueuePair::resume`](crate::DatagramQueuePair::resume) lead back (10.3.1.6).
///
/// ```
/// use urxe::WcStatus;
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// // A message that is longer than the receive is an error at both ends.
/// b.post_receive(ReceiveRequest::into(pd.buffer(2)?))?;
/// a.post_send(SendRequest::send(b"hello"))?;
/// for _ in 0..2 {
///     let error = cq.wait()?.result.unwrap_err();
///     println!("{error}");
///     assert!(matches!(error.status, WcStatus::LocLenErr | WcStatus::RemInvReqErr));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("{} ({status:?})", explanation(*.status))]
#[non_exhaustive]
pub struct WorkError {
    /// The status, as in `enum ibv_wc_status`.
    pub status: WcStatus,
}

impl WorkError {
    /// The `errno` that stands for the status.
    ///
    /// Verbs programs get the status itself; sockets over RDMA report such a value.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// b.fail()?;
    /// let error = b.cq().wait()?.result.unwrap_err();
    /// assert_eq!(error.errno(), libc::ECANCELED);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn errno(&self) -> i32 {
        match self.status {
            WcStatus::LocLenErr => libc::EMSGSIZE,
            WcStatus::LocProtErr | WcStatus::LocAccessErr => libc::EFAULT,
            WcStatus::WrFlushErr => libc::ECANCELED,
            WcStatus::RemAccessErr => libc::EACCES,
            WcStatus::RemInvReqErr => libc::EREMOTEIO,
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr => libc::ETIMEDOUT,
            _ => libc::EIO,
        }
    }
}

impl Completion {
    #[inline]
    pub(crate) fn new(completion: &work::Completion, entry: Entry) -> Self {
        let queue = entry.id.queue();
        let result = match completion.status {
            WcStatus::Success => Ok(Done {
                opcode: completion.opcode,
                byte_len: completion.byte_len,
                imm: match completion.extra {
                    Extra::Imm(imm) => Some(imm),
                    Extra::None | Extra::Invalidated(_) => None,
                },
                invalidated: match completion.extra {
                    Extra::Invalidated(key) => Some(key),
                    Extra::None | Extra::Imm(_) => None,
                },
                src_qp: completion.grh.map(|_| completion.src_qp),
            }),
            status => Err(WorkError { status }),
        };
        let (wr_id, qpn) = (entry.wr_id, completion.qpn);
        // One structure for each kind of memory: what both have in common would be moved.
        match entry.memory {
            Memory::Buffer(mut buffer) => {
                if queue == WorkQueue::Receive {
                    buffer.set_received(match result {
                        Ok(done) if done.opcode == WcOpcode::Recv => done.byte_len as usize,
                        _ => 0,
                    });
                }
                Completion {
                    wr_id,
                    qpn,
                    queue,
                    buffers: SliceList::default(),
                    buffer: Some(buffer),
                    result,
                }
            }
            Memory::Slices(buffers) => Completion {
                wr_id,
                qpn,
                queue,
                buffers,
                buffer: None,
                result,
            },
        }
    }

    /// Returns a copy of the data that was received or read into [`Completion::buffers`] or
    /// [`Completion::buffer`].
    ///
    /// It is empty for operations that store no data there. The header at the start of a datagram's
    /// buffers is left out.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().wait()?.data()?, b"hello");
    /// // A SEND stores no data at the sender.
    /// assert_eq!(a.cq().wait()?.data()?, b"");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error in [`Completion::result`].
    pub fn data(&self) -> Result<Vec<u8>, WorkError> {
        let done = self.result?;
        if !done.brings_data() {
            return Ok(Vec::new());
        }
        let mut data = self.first(done.byte_len as usize);
        if done.src_qp.is_some() {
            data.drain(..GRH_BYTES.min(data.len()));
        }
        Ok(data)
    }

    /// Returns the sender and the destination address of a datagram.
    ///
    /// `None` for other completions. The destination may be a multicast group.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"question").unsignaled())?;
    /// let question = cq.wait()?;
    /// let sender = question.sender().expect("it is a datagram");
    ///
    /// // Reply to the sender, by the Q_Key that both have agreed on.
    /// let address = DatagramAddress::new(sender.gid, sender.qpn, QKey(7));
    /// b.post_send(&b.destination(&address)?, SendRequest::send(b"answer"))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn sender(&self) -> Option<Sender> {
        let qpn = self.result.ok()?.src_qp?;
        let header = self.first(GRH_BYTES);
        let network = NetworkHeader::parse(header.first_chunk()?)?;
        Some(Sender {
            gid: network.source,
            qpn,
            sent_to: network.destination,
        })
    }

    /// Returns a copy of the first `len` bytes of the buffers.
    fn first(&self, len: usize) -> Vec<u8> {
        if let Some(buffer) = &self.buffer {
            return buffer[..len.min(buffer.len())].to_vec();
        }
        let mut data = Vec::new();
        let mut left = len;
        for buffer in &self.buffers {
            let start = data.len();
            let part = buffer.len().min(left);
            data.resize(start + part, 0);
            // This cannot fail: the part is no longer than the buffer.
            let read = buffer.read(0, &mut data[start..]);
            debug_assert_eq!(read, Ok(()));
            left -= part;
        }
        data
    }
}

impl Done {
    /// Returns whether the operation stores data in the work request's own memory.
    fn brings_data(&self) -> bool {
        match self.opcode {
            WcOpcode::Recv | WcOpcode::Read | WcOpcode::CompareSwap | WcOpcode::FetchAdd => true,
            WcOpcode::Send
            | WcOpcode::Write
            | WcOpcode::BindMw
            | WcOpcode::LocalInv
            | WcOpcode::AtomicWrite
            | WcOpcode::Flush
            | WcOpcode::RecvWriteImm => false,
        }
    }
}

/// Returns the meaning of a status, and the remedy.
fn explanation(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "success",
        WcStatus::LocLenErr => "the message does not fit: post a larger receive, or send less",
        WcStatus::LocProtErr => "the local memory does not permit this access",
        WcStatus::WrFlushErr => {
            "the queue pair entered the error state first: see the first failed work request"
        }
        WcStatus::LocAccessErr => {
            "the peer's WRITE with immediate data accessed memory that does not permit it"
        }
        WcStatus::BadRespErr => "the peer sent a response that does not fit the request",
        WcStatus::RemInvReqErr => {
            "the peer rejected the request as invalid: its receive is too small, or it does not \
             support the operation"
        }
        WcStatus::RemAccessErr => {
            "the peer denied access: the key, the range or the access rights of its memory region \
             do not permit the request"
        }
        WcStatus::RemOpErr => "the peer could not execute the request",
        WcStatus::RetryExcErr => {
            "the peer did not respond: check that it runs, is connected to this queue pair and is \
             reachable on UDP port 4791"
        }
        WcStatus::RnrRetryExcErr => {
            "the peer had no receive posted: post receives earlier, or allow more RNR retries"
        }
        WcStatus::RemAbortErr => "the peer aborted the request",
        WcStatus::RespTimeoutErr => "the response did not arrive in time",
        WcStatus::FatalErr => "the device failed",
        WcStatus::MwBindErr => {
            "the memory window could not be bound: it is bound already, or the region does not \
             permit it"
        }
        WcStatus::LocQpOpErr
        | WcStatus::LocEecOpErr
        | WcStatus::LocRddViolErr
        | WcStatus::RemInvRdReqErr
        | WcStatus::InvEecnErr
        | WcStatus::InvEecStateErr
        | WcStatus::GeneralErr => "an internal error",
    }
}
