//! The C ABI of libibverbs and librdmacm: one shared object that serves under both names.
//!
//! [`ffi`] has the types, [`entry`] the way into and out of every function, `exports` the symbols
//! from the list in `symbols.txt`; the other modules are the functions, by subject. No protocol
//! here: the functions check pointers, convert, and call the objects of `urxe_driver`.

mod ah;
mod attributes;
mod buf;
mod cancellation;
mod channel;
mod cm;
mod context;
mod convert;
mod cq;
mod cq_ex;
mod device;
mod dm;
pub mod entry;
pub mod errno;
mod events;
mod exports;
pub mod ffi;
mod flow;
mod fork;
mod import;
mod log;
mod mr;
mod multicast;
mod mw;
mod names;
mod object;
mod parent_domain;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod query;
mod rates;
mod rsocket;
mod srq;
mod sysfs;
mod unsupported;
mod waited;
mod wq;
mod xrcd;

/// The exported functions by their C names, for the fuzz target `abi`. Programs in Rust have the crate's own
/// objects instead.
#[doc(hidden)]
pub mod calls {
    pub use super::{
        ah::*, channel::*, context::*, cq::*, device::*, events::*, import::*, mr::*, multicast::*,
        pd::*, qp::*, qp_ex::*, query::*, srq::*,
    };
}
