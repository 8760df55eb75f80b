//! The C ABI of libibverbs and librdmacm.
//!
//! [`ffi`] has the C types, [`entry`] the wrappers for entry to and exit from every function, and
//! [`calls`] the functions by their C names. The other modules hold the functions, by subject.
//! There is no protocol code here: the functions check pointers, convert, and call the objects of
//! `urxe_driver` and `urxe_rsockets`.
//!
//! The package `liburxe` (`verbs/liburxe/`) builds the shared object, which exports each function
//! under its symbol versions.

mod ah;
mod allocator;
mod buf;
mod cancellation;
mod channel;
mod cm;
mod context;
mod convert;
mod cq;
mod device;
mod dm;
pub mod entry;
pub mod errno;
mod events;
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
mod open;
mod parent_domain;
mod pd;
mod post;
mod qp;
mod query;
mod rates;
mod registration;
mod rsocket;
mod session;
mod srq;
mod sysfs;
#[doc(hidden)]
pub mod unsupported;
mod wait_registry;
mod work_request;
mod wq;
mod xrcd;

/// The exported functions by their C names.
#[doc(hidden)]
pub mod calls {
    pub use crate::cm::{
        address::*, addrinfo::*, channel::*, connection::*, devices::*, endpoint::*, event::*,
        id::*, multicast::*, option::*, qp::*, srq::*,
    };
    pub use crate::rsocket::{epoll::*, name::*, option::*, poll::*, socket::*, transfer::*};
    pub use crate::{
        ah::*, buf::*, channel::*, convert::*, cq::*, device::*, events::*, fork::*, import::*,
        mr::*, multicast::*, names::*, open::*, pd::*, qp::*, query::*, rates::*, srq::*, sysfs::*,
    };
}
