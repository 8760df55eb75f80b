//! The parts of an engine that all its queue pairs share.

use crate::ports::BatchPool;
use std::sync::Arc;
use urxe_proto::rc::OutOfOrderBudget;
use urxe_proto::rc::congestion::Algorithm;

/// The parts of an engine that all its queue pairs share.
#[derive(Clone, Debug)]
pub(crate) struct QpResources {
    pub(crate) batches: Arc<BatchPool>,
    /// The memory that is left for out-of-order queues.
    pub(crate) out_of_order: Arc<OutOfOrderBudget>,
    /// The congestion control algorithm of new connections.
    pub(crate) congestion: Algorithm,
}
