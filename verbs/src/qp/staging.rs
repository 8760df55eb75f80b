//! The requests that a thread builds until `wr_complete` posts all of them or none.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use urxe_driver::ah::Destination;
use urxe_driver::qp::{MAX_INLINE, SendTarget};
use urxe_driver::{AddressHandle, Qp};
use urxe_proto::ids::{QKey, Qpn, Srqn};
use urxe_proto::qp::QpType;
use urxe_proto::queue::PostError;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr, Sge};

use crate::errno::Errno;
use crate::ffi::*;

/// Returns the operations that `send_ops_flags` may have for a service: those of
/// [`QpType::supports`].
fn operations_of(service: QpType) -> u64 {
    const SENDS: ibv_qp_create_send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const UNRELIABLE: ibv_qp_create_send_ops_flags = SENDS
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    const EXTENDED_RELIABLE: ibv_qp_create_send_ops_flags = UNRELIABLE
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let operations = match service {
        QpType::Rc => EXTENDED_RELIABLE | IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE,
        QpType::XrcIni => EXTENDED_RELIABLE,
        QpType::XrcTgt => 0,
        QpType::Uc => UNRELIABLE,
        QpType::Ud => SENDS,
        QpType::RawPacket => IBV_QP_EX_WITH_SEND,
    };
    operations.into()
}

/// The requests that a thread is building, protected by the `mutex` of the `ibv_qp`.
#[derive(Debug)]
pub(crate) struct Staging(pub(super) UnsafeCell<Staged>);

// SAFETY: the contents are accessed only by the thread that holds the `mutex` of the `ibv_qp`, the
// contract of `qp_ex::staged`.
unsafe impl Sync for Staging {}

impl Staging {
    /// # Errors
    /// `EOPNOTSUPP` for operations that the service does not have.
    pub fn new(service: QpType, send_ops: u64) -> Result<Self, Errno> {
        if send_ops & !operations_of(service) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Ok(Self(UnsafeCell::default()))
    }
}

/// The requests, with their scatter/gather elements and inline data in arrays of their own.
#[derive(Debug, Default)]
pub(super) struct Staged {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    data: Vec<u8>,
    /// The first error, which `wr_complete` reports.
    pub(super) error: Option<Errno>,
}

#[derive(Debug)]
pub(super) struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    pub(super) to: SendDestination,
}

/// The destination of a request, as set by the application.
#[derive(Debug)]
pub(super) enum SendDestination {
    Peer,
    Datagram(Arc<AddressHandle>, Qpn, QKey),
    Shared(Srqn),
}

impl SendDestination {
    fn to(&self) -> SendTarget<'_> {
        match self {
            Self::Peer => SendTarget::Peer,
            Self::Datagram(handle, qpn, qkey) => SendTarget::Datagram(Destination {
                handle,
                qpn: *qpn,
                qkey: *qkey,
            }),
            Self::Shared(srq) => SendTarget::Shared(*srq),
        }
    }

    /// Whether the destination is of the kind that the queue pair requires, and may be used with
    /// it.
    fn suits(&self, pair: &Qp, op: SendOp) -> bool {
        match pair.service() {
            QpType::Ud => {
                matches!(self, Self::Datagram(handle, ..) if Arc::ptr_eq(handle.pd(), pair.pd()))
            }
            QpType::XrcIni => op.is_local() || matches!(self, Self::Shared(_)),
            _ => true,
        }
    }
}

#[derive(Debug)]
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Staged {
    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.data.clear();
        self.error = None;
    }

    pub(super) fn begin(&mut self, wr_id: u64, op: SendOp, flags: SendFlags) {
        self.requests.push(Request {
            wr_id,
            op,
            flags,
            data: Data::Sges(0..0),
            to: SendDestination::Peer,
        });
    }

    pub(super) fn last(&mut self) -> Result<&mut Request, Errno> {
        self.requests.last_mut().ok_or(Errno(libc::EINVAL))
    }

    pub(super) fn set_sges(&mut self, sges: impl Iterator<Item = Sge>) -> Result<(), Errno> {
        let start = self.sges.len();
        self.sges.extend(sges);
        let range = start..self.sges.len();
        self.last()?.data = Data::Sges(range);
        Ok(())
    }

    /// Copies the data of `pieces` to the last request as inline data.
    ///
    /// # Safety
    /// Each piece must describe `length` readable bytes at `addr`, unless `addr` is null.
    pub(super) unsafe fn set_inline(
        &mut self,
        pieces: impl Iterator<Item = ibv_data_buf>,
    ) -> Result<(), Errno> {
        let start = self.data.len();
        for piece in pieces.filter(|piece| piece.length > 0) {
            let total = (self.data.len() - start).saturating_add(piece.length);
            if total > MAX_INLINE as usize {
                return Err(PostError::TooMuchInline.into());
            }
            if piece.addr.is_null() {
                return Err(Errno(libc::EINVAL));
            }
            self.data.reserve(piece.length);
            // SAFETY: `reserve` made room for `length` bytes behind `end`, and `addr` is not null
            // and points to `length` readable bytes: the caller's contract, section Safety. No
            // reference to the application's bytes is created.
            unsafe {
                let end = self.data.len();
                let room = self.data.as_mut_ptr().add(end);
                ptr::copy_nonoverlapping(piece.addr.cast(), room, piece.length);
                self.data.set_len(end + piece.length);
            }
        }
        let range = start..self.data.len();
        let request = self.last()?;
        request.data = Data::Inline(range);
        request.flags |= SendFlags::INLINE;
        Ok(())
    }

    /// Posts all requests, or none.
    pub(super) fn post(&self, pair: &Arc<Qp>) -> Result<(), Errno> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut posting = pair.start_posting();
        posting.check_room(self.requests.len())?;
        for request in &self.requests {
            self.check(request, pair)?;
        }
        for request in &self.requests {
            posting.post_anywhere(&self.work_request(request), &request.to.to())?;
        }
        Ok(())
    }

    /// Returns the work request to post.
    fn work_request(&self, request: &Request) -> SendWr<'_> {
        SendWr {
            wr_id: request.wr_id,
            op: request.op,
            flags: request.flags,
            payload: self.payload(request),
            dest: None,
        }
    }

    fn payload(&self, request: &Request) -> Payload<'_> {
        match &request.data {
            Data::Sges(range) => Payload::Sges(&self.sges[range.clone()]),
            Data::Inline(range) => Payload::Inline(&self.data[range.clone()]),
        }
    }

    /// Returns the error with which posting the request would fail, before any request is posted.
    fn check(&self, request: &Request, pair: &Qp) -> Result<(), PostError> {
        if !pair.service().supports(request.op) {
            return Err(PostError::Operation);
        }
        if !request.to.suits(pair, request.op) {
            return Err(PostError::Destination);
        }
        let size = pair.cap().send_queue_size();
        size.check(&self.work_request(request)).map(|_| ())
    }
}
