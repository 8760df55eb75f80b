//! The InfiniBand transport as RoCEv2 carries it: wire formats and protocol state machines.
//!
//! Nothing here does I/O, reads a clock, starts a thread or touches a program's memory. Packets,
//! work requests and the time go in; packets, completions and the next deadline come out. The same
//! code therefore runs on sockets, in a seeded simulator with virtual time, and under a fuzzer.
//!
//! - [`wire`]: one file a header, one table of opcodes, checked parse and emit.
//! - [`icrc`]: the invariant CRC that ends every packet.
//! - [`psn`]: packet sequence numbers, arithmetic modulo 2^24.
//! - [`qp`]: the states of a queue pair, and which attributes each transition takes.
//! - [`work`]: work requests and completions; [`queue`]: the queues that hold them.
//! - [`rc`]: reliable connection: requester, responder and retransmission.
//! - [`uc`] and [`ud`]: unreliable connection and datagram; [`raw`]: Ethernet frames; [`unreliable`]:
//!   what they have in common.
//! - [`cm`]: communication management: how connections come about and end.
//! - [`rsocket`]: sockets over RDMA, which stand above all this.
//! - [`host`]: what a state machine asks of its surroundings: memory, completions, receives.
//!
//! Section numbers refer to the InfiniBand Architecture Specification, volume 1; annex A17 is RoCEv2.
#![forbid(unsafe_code)]

pub mod cm;
mod held_receive;
pub mod host;
pub mod icrc;
pub mod ids;
mod inbound;
pub mod mtu;
pub mod psn;
pub mod qp;
pub mod queue;
pub mod raw;
pub mod rc;
pub mod rsocket;
mod service;
#[cfg(test)]
mod testing;
pub mod time;
pub mod uc;
pub mod ud;
pub mod unreliable;
pub mod wire;
pub mod work;
