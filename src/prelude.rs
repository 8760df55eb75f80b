//! The types that most programs use: `use urxe::prelude::*;`.
//!
//! It leaves out names that other crates use too, such as `Error`, `Result` and `Context`.
//!
//! ```
//! use urxe::prelude::*;
//!
//! # fn main() -> urxe::Result<()> {
//! let context = urxe::device("urxe_lo")?.open()?;
//! let cq: CompletionQueue = context.completion_queue()?;
//! let qp: PreparedQueuePair = context.pd().queue_pair(&cq, &cq).build()?;
//! # Ok(())
//! # }
//! ```

pub use crate::cm::{Connection, Listener, Route};
pub use crate::{
    BufferPool, Completion, CompletionQueue, ConnectOptions, DatagramAddress, DatagramQueuePair,
    Destination, Endpoint, GRH_BYTES, LocalBuffer, LocalSlice, LocalWord, MemoryRegion,
    PreparedQueuePair, ProtectionDomain, QKey, QueuePair, ReceiveRequest, RemoteAccess,
    RemoteRegion, RemoteWord, SendRequest, SharedReceiveQueue, WcStatus, WorkQueue,
};
