//! Queue pairs: the transport's state machine ([`transport`]), its memory and completion queues
//! ([`host`]), and the network.
//!
//! [`rx`] takes packets in, [`tx`] sends them, [`pair`] has the state of both. Each call returns
//! [`Effects`]: what the thread that called does once it has released the queue pair's lock.

pub(crate) mod destination;
mod effects;
pub(crate) mod error;
mod final_ack;
mod flow_control;
pub(crate) mod frames;
mod host;
pub(crate) mod init;
mod owners;
pub(crate) mod pacer;
mod pair;
mod queued_handles;
mod receive_ring;
pub(crate) mod receives;
mod report;
mod resources;
mod rx;
mod stalled;
pub(crate) mod transport;
mod tx;

pub(crate) use effects::{Effects, PathTimeout};
pub(crate) use owners::{Owner, Owners};
pub use pair::Qp;
pub(crate) use pair::{Inner, PeerPath};
pub use report::QueuePairReport;
pub(crate) use resources::QpResources;
pub(crate) use rx::Incoming;
pub(crate) use tx::UnsentBatch;
