//! The InfiniBand transport as RoCEv2 carries it: wire formats and protocol state machines.
//!
//! The crate is sans-I/O. It opens no sockets, reads no clock, starts no threads and accesses the
//! program's memory only through traits. Packets, work requests and the time go in; packets,
//! completions and the next deadline come out. The same code therefore runs on sockets, in a seeded
//! simulator with virtual time, and under a fuzzer.
//!
//! # Driving a state machine
//! A queue pair ([`rc::RcQp`], [`uc::UcQp`], [`ud::UdQp`], [`raw::RawQp`]) is driven by these
//! calls:
//!
//! - `modify` changes its state and attributes; `post_send` queues a work request.
//! - `handle_packet` processes a packet whose ICRC has been verified.
//! - `poll_transmit` stages packets into a [`host::Transmit`] sink. It returns true when the sink
//!   was full and more remains. Call it after each of the other calls.
//! - `deadline` is the time at which to call `handle_timeout`, where the service has timers. Query
//!   it again after each call.
//!
//! All calls take a [`host::Host`], through which they access memory, take receives and report
//! completions and events.
//!
//! # Modules
//! - [`wire`]: packet headers, one file each; the table of opcodes; checked parsing and emission.
//! - [`icrc`]: the invariant CRC at the end of every packet.
//! - [`psn`]: packet sequence numbers, arithmetic modulo 2^24.
//! - [`qp`]: queue pair states, attributes and transitions.
//! - [`work`]: work requests and completions; [`queue`]: the queues that hold them.
//! - [`rc`]: reliable connection.
//! - [`uc`]: unreliable connection; [`ud`]: unreliable datagram; [`raw`]: raw Ethernet frames;
//!   [`unreliable`]: the code that these three share.
//! - [`cm`]: the communication manager, which sets up and tears down connections.
//! - [`rsocket`]: sockets over RDMA, on top of queue pairs.
//! - [`host`]: the traits through which a state machine uses memory, receives and completions.
//!
//! Section numbers refer to the InfiniBand Architecture Specification, volume 1; annex A17 is
//! RoCEv2.
#![forbid(unsafe_code)]

// Lengths on the wire have 32 bits, and addresses 64; both are converted to `usize`.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("urxe needs a 64-bit target, such as x86_64-unknown-linux-gnu");

mod access;
pub mod cm;
pub mod host;
pub mod icrc;
pub mod ids;
pub mod mtu;
mod placement;
pub mod psn;
pub mod qp;
mod qp_base;
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
