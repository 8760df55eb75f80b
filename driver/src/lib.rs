//! The RoCEv2 endpoint of a process: sockets, devices, memory, queues and the progress engine.
//!
//! - [`engine`]: moves packets between sockets and queue pairs and runs their timers, also while
//!   the program makes no calls.
//! - [`cm`]: connections by IP address and port.
//! - One file for each object: [`device`], [`context`], [`pd`], [`mr`], [`cq`], [`srq`], [`xrcd`],
//!   [`qp`], [`ah`].
//! - [`events`]: asynchronous events of objects. [`event_queue`] and [`waiting`]: how threads wait
//!   for events.
//! - [`tables`]: lookup of objects by the keys and numbers in packets.
//!
//! Together with the C ABI this crate holds the unsafe code: system calls, and access to the
//! program's memory, which only `memory` makes.

pub mod ah;
pub mod cm;
pub mod context;
mod counted;
mod counters;
pub mod cq;
pub mod device;
pub mod dm;
pub mod dmabuf;
pub mod engine;
pub mod event_queue;
pub mod events;
pub mod isolation;
mod memory;
pub mod moderation;
pub mod mr;
pub mod mw;
pub mod odp;
pub mod owned;
pub mod pd;
pub mod per_process;
pub mod qp;
pub mod raw;
mod regions;
pub mod route;
pub mod srq;
pub mod stat;
mod sync;
pub mod tables;
pub mod waiting;
mod watcher;
pub mod xrcd;

pub use ah::AddressHandle;
pub use context::Context;
pub use cq::{Channel, Cq};
pub use device::Device;
pub use mr::Mr;
pub use mw::Mw;
pub use pd::Pd;
pub use qp::Qp;
pub use srq::Srq;
pub use xrcd::Xrcd;
