//! The protocol of rdma-core's rsockets: sockets over RDMA.
//!
//! It is implemented on top of verbs, like an application, and is not part of the transport.
//!
//! - [`wire`]: private data of connections, messages in immediate data, and entries that a side
//!   writes into the peer's memory.
//! - [`stream`]: one side of a stream: credits, buffers, shutdown.
//! - [`datagram`]: the headers of datagrams.

pub mod datagram;
pub mod stream;
pub mod wire;
