//! Attributes for the creation of a queue pair, and their limits.

use crate::queues::cq::Cq;
use crate::queues::limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use crate::queues::raw::Spread;
use crate::queues::srq::{Srq, Xrcd};
use crate::scheduling::affinity::CqAffinity;
use std::sync::Arc;
use urxe_proto::qp::QpType;
use urxe_proto::queue::SendQueueSize;

/// Size of a scatter/gather element in bytes: address, length and key.
const ELEMENT_BYTES: u32 = 16;

/// Attributes for the creation of a queue pair (11.2.4.1).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The transport service.
    pub service: QpType,
    /// The completion queue of sends; `None` for a queue pair that sends no requests.
    pub send_cq: Option<Arc<Cq>>,
    /// The source of receives, and their completion queue.
    pub receives: ReceivesFrom,
    /// Capacities of the queues. Those for receives are ignored with a shared receive queue.
    pub cap: QpCap,
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// Whether the queue pair does not receive its own datagrams to a multicast group that it is
    /// attached to. Only for UD.
    pub block_own_multicast: bool,
}

/// The source of receives for the messages of a queue pair.
#[derive(Clone, Debug)]
pub enum ReceivesFrom {
    /// None: an XRC initiator.
    Nowhere,
    /// A receive queue of its own.
    Own(Arc<Cq>),
    /// A shared receive queue.
    Shared(Arc<Srq>, Arc<Cq>),
    /// The shared receive queues of this domain, as each message names one: an XRC target.
    Domain(Arc<Xrcd>),
    /// Work queues over which the frames are distributed, for raw packets.
    Spread(Spread),
}

impl ReceivesFrom {
    /// Returns the affinity of the completion queues of the receives.
    fn affinity(&self) -> Option<&CqAffinity> {
        match self {
            Self::Own(cq) | Self::Shared(_, cq) => Some(&cq.affinity),
            Self::Domain(domain) => Some(&domain.affinity),
            Self::Nowhere | Self::Spread(_) => None,
        }
    }
}

impl QpInit {
    /// Returns the affinities of the completion queues that the queue pair uses.
    pub(crate) fn affinities(&self) -> Vec<&CqAffinity> {
        let send = self.send_cq.as_ref().map(|cq| &cq.affinity);
        self.receives.affinity().into_iter().chain(send).collect()
    }

    /// Returns whether the service supports these queues and options.
    pub(crate) fn is_possible(&self) -> bool {
        let has_queues = match (self.service, &self.send_cq, &self.receives) {
            (QpType::Rc | QpType::Uc | QpType::Ud, send_cq, receives) => {
                let receives = matches!(receives, ReceivesFrom::Own(_) | ReceivesFrom::Shared(..));
                send_cq.is_some() && receives
            }
            (QpType::RawPacket, Some(_), ReceivesFrom::Own(_) | ReceivesFrom::Shared(..))
            | (QpType::RawPacket, None, ReceivesFrom::Spread(_))
            | (QpType::XrcIni, Some(_), ReceivesFrom::Nowhere)
            | (QpType::XrcTgt, None, ReceivesFrom::Domain(_)) => true,
            _ => false,
        };
        has_queues && (self.service == QpType::Ud || !self.block_own_multicast)
    }

    /// The capacities, with those of missing queues set to 0.
    pub(crate) fn actual_cap(&self) -> QpCap {
        let mut cap = self.cap;
        if !matches!(self.receives, ReceivesFrom::Own(_)) {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if self.send_cq.is_none() {
            (cap.max_send_wr, cap.max_send_sge, cap.max_inline) = (0, 0, 0);
        }
        // Inline data takes the space of the elements, so at least their size is available.
        // Applications rely on it: `rdma_xclient` requests none and sends 16 bytes.
        let free = cap.max_send_sge.min(MAX_SGE) * ELEMENT_BYTES;
        cap.max_inline = cap.max_inline.max(free);
        cap
    }
}

/// The capacities of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Outstanding sends, at most [`MAX_QP_WR`].
    pub max_send_wr: u32,
    /// Outstanding receives, at most [`MAX_QP_WR`].
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send, at most [`MAX_SGE`].
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive, at most [`MAX_SGE`].
    pub max_recv_sge: u32,
    /// Inline data of a send, in bytes, at most [`MAX_INLINE`].
    pub max_inline: u32,
}

impl QpCap {
    /// The size of the send queue.
    pub fn send_queue_size(&self) -> SendQueueSize {
        SendQueueSize {
            max_wr: self.max_send_wr,
            max_sge: self.max_send_sge,
            max_inline: self.max_inline,
        }
    }

    pub(crate) fn is_possible(&self) -> bool {
        self.max_send_wr <= MAX_QP_WR
            && self.max_recv_wr <= MAX_QP_WR
            && self.max_send_sge <= MAX_SGE
            && self.max_recv_sge <= MAX_SGE
            && self.max_inline <= MAX_INLINE
    }
}
