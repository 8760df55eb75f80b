//! Where the messages of a queue pair find receives: in its own queue, or in a shared one.

use super::init::QpInit;
use crate::event_queue::lock;
use crate::pd::Pd;
use crate::regions::RegionTable;
use crate::srq::Srq;
use std::sync::{Arc, Mutex};
use urxe_proto::host::{MemoryError, Receive};
use urxe_proto::queue::{PostError, RecvQueue};
use urxe_proto::work::Sge;

/// Where the messages of a queue pair find receives.
#[derive(Debug)]
pub(super) enum Source {
    Own(Mutex<RecvQueue>),
    Shared(Arc<Srq>),
}

impl Source {
    pub(super) fn new(init: &QpInit) -> Self {
        match &init.srq {
            Some(srq) => Self::Shared(Arc::clone(srq)),
            None => Self::Own(Mutex::new(RecvQueue::new(
                init.cap.max_recv_wr,
                init.cap.max_recv_sge,
            ))),
        }
    }

    /// Adds a receive, if they are the queue pair's own.
    pub(super) fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self {
            Self::Own(queue) => lock(queue).post(wr_id, sges),
            Self::Shared(_) => Err(PostError::SharedReceives),
        }
    }

    /// See [`urxe_proto::host::Receives::take_receive`].
    pub(super) fn take(&self, into: &mut Receive) -> bool {
        match self {
            Self::Own(queue) => lock(queue).take(into),
            Self::Shared(srq) => srq.take(into),
        }
    }

    /// See [`urxe_proto::host::Receives::receive_credits`].
    pub(super) fn credits(&self) -> Option<u32> {
        match self {
            Self::Own(queue) => Some(lock(queue).len()),
            Self::Shared(_) => None,
        }
    }

    /// See [`urxe_proto::host::Receives::fill_receive`]. `pd` is the queue pair's.
    pub(super) fn fill(
        &self,
        regions: &RegionTable,
        pd: &Pd,
        receive: &Receive,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        match self {
            Self::Own(_) => regions.scatter(pd, &receive.sges, offset, data),
            Self::Shared(srq) => srq.fill(regions, receive, offset, data),
        }
    }
}
