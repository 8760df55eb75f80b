//! The objects that programs use: the calls on objects that need the paths of packets.

pub mod context;
pub mod cq;
pub mod qp;
pub mod srq;
pub mod stat;
pub mod waiting;
pub(crate) mod watcher;
pub mod xrcd;
