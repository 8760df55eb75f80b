//! Completions: how work requests ended.
#![forbid(unsafe_code)]

use crate::mr::LocalSlice;
use crate::outstanding::{Completed, WorkId};
use urxe_proto::ids::{Gid, Qpn, RKey};
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::Grh;
use urxe_proto::work::{self, Extra, WcOpcode, WcStatus};

pub use crate::outstanding::WorkQueue;

/// How a work request ended. (`ibv_wc`.)
#[derive(Debug)]
pub struct Completion {
    /// The number that the program gave the work request.
    pub wr_id: u64,
    /// The queue pair that it was posted to.
    pub qpn: Qpn,
    /// Which of the queue pair's queues it was in.
    pub queue: WorkQueue,
    /// The memory that it worked on. It stays registered as long as this is kept.
    pub buffers: Vec<LocalSlice>,
    /// What was done, or what went wrong.
    pub result: Result<Done, WorkError>,
}

/// A work request that was done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Done {
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes that were received or read.
    pub byte_len: u32,
    /// The immediate data that came with it.
    pub imm: Option<u32>,
    /// The key of this end's that the peer took back with it.
    pub invalidated: Option<RKey>,
    /// The queue pair that sent it, for a datagram. Its address is in the header, see
    /// [`Completion::sender`].
    pub src_qp: Option<Qpn>,
}

/// The bytes at the start of a datagram's receive that hold a header, and not data.
pub const GRH_BYTES: usize = Grh::LEN;

/// Who sent a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sender {
    /// Its address.
    pub gid: Gid,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The address that it was sent to: one of this end's, or a multicast group.
    pub sent_to: Gid,
}

/// Why a work request was not done. Unless it says otherwise, the queue pair is in error now: what
/// was outstanding is flushed, and it must be [reset](crate::QueuePair::reset) or made anew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("{} ({status:?})", explanation(*.status))]
pub struct WorkError {
    /// The status, as `enum ibv_wc_status` has it.
    pub status: WcStatus,
}

impl Completion {
    pub(crate) fn new(completion: &work::Completion, id: WorkId, completed: Completed) -> Self {
        let entry = completed.entry;
        Completion {
            wr_id: entry.wr_id,
            qpn: completion.qpn,
            queue: id.queue(),
            buffers: entry.buffers,
            result: match completion.status {
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
            },
        }
    }

    /// A copy of what was received or read into [`Completion::buffers`]: nothing for work requests
    /// that bring no data there. The header before the data of a datagram is left out.
    ///
    /// # Errors
    /// The one in [`Completion::result`].
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

    /// Who sent a datagram, and to which address: with that of a group, several may have got it.
    /// `None` for what is no datagram.
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

    /// A copy of the first bytes in the buffers.
    fn first(&self, len: usize) -> Vec<u8> {
        let mut data = Vec::new();
        let mut left = len;
        for buffer in &self.buffers {
            let start = data.len();
            let part = buffer.len().min(left);
            data.resize(start + part, 0);
            // It cannot fail: the part is no longer than the buffer.
            let read = buffer.read(0, &mut data[start..]);
            debug_assert_eq!(read, Ok(()));
            left -= part;
        }
        data
    }
}

impl Done {
    /// Whether data came into the work request's own memory.
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

/// What a status means for whoever must do something about it.
fn explanation(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "it was done",
        WcStatus::LocLenErr => {
            "the message did not fit: post a receive with more room, or send less"
        }
        WcStatus::LocProtErr => "local memory may not be used like this",
        WcStatus::WrFlushErr => {
            "the queue pair was in error before its turn came: the first failure tells why"
        }
        WcStatus::LocAccessErr => {
            "the peer's write with immediate data met memory it may not write"
        }
        WcStatus::BadRespErr => "the peer answered something that makes no sense",
        WcStatus::RemInvReqErr => {
            "the peer refused the request as invalid: its receive is too small, or it does not take \
             this operation"
        }
        WcStatus::RemAccessErr => {
            "the peer refused access: the key, the range or the rights of its memory region do not \
             permit it"
        }
        WcStatus::RemOpErr => "the peer failed to carry out the request",
        WcStatus::RetryExcErr => {
            "the peer did not answer: is it running, connected to this queue pair, and reachable by \
             UDP port 4791?"
        }
        WcStatus::RnrRetryExcErr => {
            "the peer had no receive posted: post receives earlier, or allow more RNR retries"
        }
        WcStatus::RemAbortErr => "the peer aborted the request",
        WcStatus::RespTimeoutErr => "the response did not come in time",
        WcStatus::FatalErr => "the device failed",
        WcStatus::MwBindErr => {
            "the memory window could not be bound: it is bound already, or the region does not permit it"
        }
        WcStatus::LocQpOpErr
        | WcStatus::LocEecOpErr
        | WcStatus::LocRddViolErr
        | WcStatus::RemInvRdReqErr
        | WcStatus::InvEecnErr
        | WcStatus::InvEecStateErr
        | WcStatus::GeneralErr => "an error inside this end",
    }
}
