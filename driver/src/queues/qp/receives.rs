//! The source of a queue pair's receives: its own queue, a shared receive queue, or those that the
//! messages name (XRC).

use super::init::{QpInit, ReceivesFrom};
use super::receive_ring::ReceiveRing;
use crate::memory::regions::RegionTable;
use crate::pd::Pd;
use crate::queues::cq::{Cq, Overrun};
use crate::queues::srq::{Srq, Xrcd};
use std::sync::Arc;
use urxe_proto::host::{MemoryError, Receive};
use urxe_proto::ids::Srqn;
use urxe_proto::queue::{NoMemory, PostError};
use urxe_proto::work::{Completion, Sge};

/// The source of a queue pair's receives, and their completion queue.
#[derive(Debug)]
pub(crate) enum Source {
    /// The queue pair receives no messages.
    Nowhere,
    Own(ReceiveRing, Arc<Cq>),
    Shared(Arc<Srq>, Arc<Cq>),
    /// Each message names a shared receive queue of the domain, which has its own completion queue.
    Domain(Arc<Xrcd>),
}

impl Source {
    pub(crate) fn new(init: &QpInit) -> Result<Self, NoMemory> {
        Ok(match &init.receives {
            // Distributed frames go to work queues with receives of their own.
            ReceivesFrom::Nowhere | ReceivesFrom::Spread(_) => Self::Nowhere,
            ReceivesFrom::Own(cq) => {
                let ring = ReceiveRing::new(init.cap.max_recv_wr, init.cap.max_recv_sge)?;
                Self::Own(ring, Arc::clone(cq))
            }
            ReceivesFrom::Shared(srq, cq) => Self::Shared(Arc::clone(srq), Arc::clone(cq)),
            ReceivesFrom::Domain(domain) => Self::Domain(Arc::clone(domain)),
        })
    }

    /// The completion queue of all receives; `None` where each shared receive queue has its own.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        match self {
            Self::Own(_, cq) | Self::Shared(_, cq) => Some(cq),
            Self::Nowhere | Self::Domain(_) => None,
        }
    }

    /// The XRC domain whose shared receive queues the messages name.
    pub(crate) fn domain(&self) -> Option<&Arc<Xrcd>> {
        match self {
            Self::Domain(domain) => Some(domain),
            _ => None,
        }
    }

    /// Posts a receive to the queue pair's own receive queue.
    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self {
            Self::Nowhere => Err(PostError::Operation),
            Self::Own(ring, _) => ring.post(wr_id, sges),
            Self::Shared(..) | Self::Domain(_) => Err(PostError::SharedReceives),
        }
    }

    /// Waits until the threads that are posting a receive to the queue pair's own receive queue
    /// have posted it.
    pub(crate) fn wait_for_posters(&self) {
        if let Self::Own(ring, _) = self {
            ring.wait_for_posters();
        }
    }

    /// See [`urxe_proto::host::Receives::take_receive`]. The caller must hold the lock of the queue
    /// pair.
    pub(crate) fn take(&self, into: &mut Receive) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Own(ring, _) => ring.take(into),
            Self::Shared(srq, _) => srq.take(into),
            Self::Domain(_) => {
                let srq = into.srq;
                self.with_named(srq, |srq| srq.take(into)) == Some(true)
            }
        }
    }

    /// See [`urxe_proto::host::Receives::has_srq`].
    pub(crate) fn has(&self, srqn: Srqn) -> bool {
        self.with_named(Some(srqn), |_| ()).is_some()
    }

    /// See [`urxe_proto::host::Receives::receive_credits`].
    pub(crate) fn credits(&self) -> Option<u32> {
        match self {
            Self::Nowhere => Some(0),
            Self::Own(ring, _) => Some(ring.len()),
            Self::Shared(..) | Self::Domain(_) => None,
        }
    }

    /// See [`urxe_proto::host::Receives::fill_receive`]. `pd` is the queue pair's protection
    /// domain. `is_solicited` is false for data that the program cannot know to arrive.
    pub(crate) fn fill(
        &self,
        regions: &RegionTable,
        pd: &Pd,
        receive: &Receive,
        offset: u64,
        data: &[u8],
        is_solicited: bool,
    ) -> Result<(), MemoryError> {
        let fill = |pd: &Pd| match is_solicited {
            true => regions.scatter(pd, &receive.sges, offset, data),
            false => regions.scatter_unsolicited(pd, &receive.sges, offset, data),
        };
        let pd = match self {
            Self::Nowhere => return Err(MemoryError::Key),
            Self::Own(..) => pd,
            Self::Shared(srq, _) => srq.pd(),
            Self::Domain(_) => return self.with_pd(receive.srq, pd, fill),
        };
        fill(pd)
    }

    /// Accesses memory in the protection domain of the shared receive queue `srq` that a message
    /// names; without one, in `pd`.
    pub(crate) fn with_pd<T>(
        &self,
        srq: Option<Srqn>,
        pd: &Pd,
        access: impl FnOnce(&Pd) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        match srq {
            None => access(pd),
            Some(_) => self
                .with_named(srq, |srq| access(srq.pd()))
                .unwrap_or(Err(MemoryError::Key)),
        }
    }

    /// Adds the completion of a receive to its completion queue.
    pub(crate) fn complete(
        &self,
        receive: &Receive,
        completion: Completion,
        solicited: bool,
    ) -> Result<(), Overrun> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Own(_, cq) | Self::Shared(_, cq) => cq.push(completion, solicited),
            // If the shared receive queue has been destroyed meanwhile, its completion is dropped.
            Self::Domain(_) => self
                .with_named(receive.srq, |srq| match srq.cq() {
                    Some(cq) => cq.push(completion, solicited),
                    None => Ok(()),
                })
                .unwrap_or(Ok(())),
        }
    }

    /// Calls `act` with the domain's shared receive queue of this number; `None` if there is none.
    fn with_named<T>(&self, srqn: Option<Srqn>, act: impl FnOnce(&Srq) -> T) -> Option<T> {
        match self {
            Self::Domain(domain) => domain.with(srqn?, act),
            _ => None,
        }
    }
}
