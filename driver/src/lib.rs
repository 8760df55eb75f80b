//! The RoCEv2 endpoint of a process: sockets, devices, memory, queues and the paths of packets.
//!
//! The modules are layers; each uses only those below it (ARCHITECTURE.md lists them all):
//!
//! - [`cm`]: connections by IP address and port.
//! - `objects`: the objects that programs use, and their calls: [`context`], [`qp`], [`cq`],
//!   [`srq`], [`xrcd`], [`waiting`] for events, [`stat`].
//! - [`path`]: from sockets to queue pairs and back; the progress thread.
//! - `queues`: queue pairs, completion queues and shared receive queues as packets change them.
//! - `ports`: the sockets of local addresses, and routes.
//! - `scheduling`: which thread does the work, and what is deferred.
//! - `memory`: [`mr`], [`mw`], [`owned`] memory, [`odp`], [`dm`], [`dmabuf`].
//! - Single files: [`device`], [`events`] and [`event_queue`], [`pd`], [`tables`], [`per_process`].
//!
//! Together with the C ABI this crate holds the unsafe code: system calls, and access to the
//! program's memory, which only `memory::access` makes.

pub mod cm;
mod counters;
pub mod device;
pub mod event_queue;
pub mod events;
mod futex;
mod futex_lock;
pub mod isolation;
mod lock_order;
mod loss;
mod memory;
mod objects;
pub mod path;
pub mod pd;
pub mod per_process;
mod ports;
mod queues;
mod scheduling;
mod semaphore_queue;
// Public for the locks of the crate `urxe`, which no other program needs.
#[doc(hidden)]
pub mod sync;
pub mod tables;

pub use cm::gsi;
pub use device::Device;
pub use memory::mr::Mr;
pub use memory::mw::Mw;
pub use memory::{dm, dmabuf, mr, mw, odp, owned};
pub use objects::context::Context;
pub use objects::cq::{Channel, Cq};
pub use objects::qp::Qp;
pub use objects::srq::Srq;
pub use objects::xrcd::Xrcd;
pub use objects::{context, cq, qp, srq, stat, waiting, xrcd};
pub use pd::Pd;
pub use ports::route;
pub use queues::ah::AddressHandle;
pub use queues::{ah, raw};
pub use scheduling::moderation;
