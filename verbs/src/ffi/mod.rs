//! The C ABI's types. This module is the only definition of their layouts, for the project's
//! headers and rdma-core's alike. It has a file for each header in `include/infiniband/verbs/`, and
//! for those of the connection manager.
//!
//! Names are the C ones, as in the manual pages. Enumerations are integers of their C type: a
//! program may pass any value, and a Rust enum must not hold a value that it does not name.
//! `tests/abi/layout.rs` compares every offset and value with both headers.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    reason = "members and constants are C's own, described by the manual pages of the calls"
)]

mod address;
mod cm;
mod completion;
mod context;
mod device;
mod event;
mod flow;
mod kernel;
mod memory;
mod qp;
mod queue;
mod sa;
mod work;
mod zeroed;

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t, timespec};

pub use address::*;
pub use cm::*;
pub use completion::*;
pub use context::*;
pub use device::*;
pub use event::*;
pub use flow::*;
pub use kernel::*;
pub use memory::*;
pub use qp::*;
pub use queue::*;
pub use sa::*;
pub use work::*;
pub use zeroed::Zeroed;
