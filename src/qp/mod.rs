//! Queue pairs: each state is a type, so operations that it does not permit do not compile.
#![forbid(unsafe_code)]

mod builder;
mod connected;
mod core;
mod datagram;
mod destination;
mod error;
mod futures;
mod operation;
mod transfer;

pub use builder::QueuePairBuilder;
pub use connected::{PreparedQueuePair, QueuePair};
pub use datagram::DatagramQueuePair;
pub use destination::{DatagramAddress, Destination};
pub use error::BuildError;
pub use operation::Operation;
pub use transfer::{Transfer, TransferBuffer};
