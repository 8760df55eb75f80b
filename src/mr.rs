//! Memory regions: registered memory, slices of it, and its description for peers.
//!
//! A region owns its memory. A peer may read and write that memory at any time, so no `&[u8]` into
//! it exists: bytes are copied in and out, and 8 aligned bytes are available as an
//! [`AtomicU64`](std::sync::atomic::AtomicU64).
#![forbid(unsafe_code)]

mod access;
mod local;
mod range;
mod region;
mod remote;

pub use access::RemoteAccess;
pub use local::{LocalSlice, LocalWord};
pub use region::{MemoryRegion, MoveError, MoveErrorKind};
pub use remote::{RemoteRegion, RemoteWord};
pub use urxe_driver::owned::RangeError;
