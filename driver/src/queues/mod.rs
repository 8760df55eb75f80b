//! The queues that packets change: queue pairs, completion queues and shared receive queues, as
//! the paths of packets see them.
//!
//! Nothing here drives the network. A queue pair returns [`qp::Effects`] instead, which
//! [`crate::path`] applies. The calls of programs that need more than one queue are in
//! [`crate::objects`].

pub mod ah;
pub mod cq;
pub mod gsi;
pub(crate) mod limits;
pub(crate) mod qp;
pub mod raw;
pub mod srq;
pub(crate) mod table;
pub mod xrcd;
