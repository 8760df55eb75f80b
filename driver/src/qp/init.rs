//! What a queue pair is created with, and the limits.

use crate::cq::Cq;
use crate::raw::Spread;
use crate::srq::Srq;
use std::sync::Arc;
use urxe_proto::qp::QpType;

/// The most work requests a queue may have.
pub const MAX_QP_WR: u32 = 32_768;
/// The most scatter/gather elements a work request may have.
pub const MAX_SGE: u32 = 32;
/// The most inline data a work request may have, in bytes.
pub const MAX_INLINE: u32 = 1024;

/// What a queue pair is created with (11.2.4.1).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The service that it gives.
    pub service: QpType,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where its messages find receives, if not in a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// The work queues that receive in its place, for raw packets.
    pub spread: Option<Spread>,
    /// Capacities of the queues. Those of receives mean nothing with a shared queue.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub signal_all: bool,
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
    pub(super) fn is_possible(&self) -> bool {
        self.max_send_wr <= MAX_QP_WR
            && self.max_recv_wr <= MAX_QP_WR
            && self.max_send_sge <= MAX_SGE
            && self.max_recv_sge <= MAX_SGE
            && self.max_inline <= MAX_INLINE
    }
}
