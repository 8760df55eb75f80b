//! What a queue pair is created with, and the limits.

use crate::cq::Cq;
use crate::raw::Spread;
use crate::srq::Srq;
use crate::xrcd::Xrcd;
use std::sync::Arc;
use urxe_proto::qp::QpType;
use urxe_proto::queue::SendQueueSize;

/// The most work requests a queue may have.
pub const MAX_QP_WR: u32 = 32_768;
/// The most scatter/gather elements a work request may have.
pub const MAX_SGE: u32 = 32;
/// The most inline data a work request may have, in bytes.
pub const MAX_INLINE: u32 = 1024;
/// What an element of a work request takes: address, length and key.
const ELEMENT_BYTES: u32 = 16;

/// What a queue pair is created with (11.2.4.1).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The service that it gives.
    pub service: QpType,
    /// Where sends complete; `None` for one that sends nothing.
    pub send_cq: Option<Arc<Cq>>,
    /// Where its messages find receives, and where these complete.
    pub receives: ReceivesFrom,
    /// Capacities of the queues. Those of receives mean nothing with a shared queue.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub signal_all: bool,
    /// Whether what it sends to a multicast group that it is attached to does not come back to it. Only for datagrams.
    pub block_own_multicast: bool,
}

/// Where the messages of a queue pair find receives.
#[derive(Clone, Debug)]
pub enum ReceivesFrom {
    /// It receives nothing: the initiator of an extended reliable connection.
    Nowhere,
    /// A queue of its own.
    Own(Arc<Cq>),
    /// A shared queue.
    Shared(Arc<Srq>, Arc<Cq>),
    /// The shared queues of this domain, whichever each message names: the target of an extended
    /// reliable connection.
    Domain(Arc<Xrcd>),
    /// Work queues that have its frames spread over them, for raw packets.
    Spread(Spread),
}

impl QpInit {
    /// Whether the service has these queues, and what else is asked for.
    pub(super) fn is_possible(&self) -> bool {
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

    /// The capacities of the queues that there are.
    pub(super) fn actual_cap(&self) -> QpCap {
        let mut cap = self.cap;
        if !matches!(self.receives, ReceivesFrom::Own(_)) {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if self.send_cq.is_none() {
            (cap.max_send_wr, cap.max_send_sge, cap.max_inline) = (0, 0, 0);
        }
        // Inline data takes the place of elements, so there is room for as much as these would take.
        // Programs count on it: `rdma_xclient` asks for none and sends 16 bytes.
        let free = cap.max_send_sge.min(MAX_SGE) * ELEMENT_BYTES;
        cap.max_inline = cap.max_inline.max(free);
        cap
    }
}

/// The capacities of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Sends outstanding, at most [`MAX_QP_WR`].
    pub max_send_wr: u32,
    /// Receives outstanding, at most [`MAX_QP_WR`].
    pub max_recv_wr: u32,
    /// Elements of a send, at most [`MAX_SGE`].
    pub max_send_sge: u32,
    /// Elements of a receive, at most [`MAX_SGE`].
    pub max_recv_sge: u32,
    /// Inline data of a send in bytes, at most [`MAX_INLINE`].
    pub max_inline: u32,
}

impl QpCap {
    /// Its send queue.
    pub fn send_queue_size(&self) -> SendQueueSize {
        SendQueueSize {
            max_wr: self.max_send_wr,
            max_sge: self.max_send_sge,
            max_inline: self.max_inline,
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.max_send_wr <= MAX_QP_WR
            && self.max_recv_wr <= MAX_QP_WR
            && self.max_send_sge <= MAX_SGE
            && self.max_recv_sge <= MAX_SGE
            && self.max_inline <= MAX_INLINE
    }
}
