//! Queue pairs.

mod attributes;
mod calls;
mod create;
mod extended;
mod staging;
mod state;

pub use calls::{ibv_destroy_qp, ibv_modify_qp, ibv_query_qp, ibv_query_qp_data_in_order};
pub use create::ibv_create_qp;
pub use extended::ibv_qp_to_qp_ex;

pub(crate) use attributes::{address_from, to_ibv_ah_attr, to_ibv_qp_attr};
pub(crate) use calls::modify_qp_rate_limit;
pub(crate) use create::create_qp_ex;
pub(crate) use state::{Ownership, QueuePair, pair_of, qp_handle};
