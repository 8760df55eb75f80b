//! Completion queues.

mod calls;
mod completion;
mod extended;
mod state;

pub use calls::{ibv_create_cq, ibv_destroy_cq, ibv_resize_cq};

pub(crate) use calls::{create_cq_ex, modify_cq, poll_cq, req_notify_cq};
pub(crate) use state::{cq_handle, queue_in, queue_of};
