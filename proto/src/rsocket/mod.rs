//! Sockets over RDMA, by the protocol of rdma-core's rsockets: what two ends tell each other, and the
//! state of one of them. It stands above the verbs as programs do, and is no part of the transport.
//!
//! - [`wire`]: private data of connections, messages in immediate data, and what ends write into each other's
//!   memory.
//! - [`stream`]: one end of a stream: credits, buffers, shutdown.
//! - [`datagram`]: the headers before datagrams.

pub mod datagram;
pub mod stream;
pub mod wire;
