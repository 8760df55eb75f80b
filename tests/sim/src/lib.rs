//! Simulations of the protocol in virtual time. One seed determines all random decisions of a run.
//! So a failure is reproducible, can be shrunk, and can be traced.
//!
//! - [`connection`]: two endpoints of a reliable connection, or an extended one, with random work
//!   over links that lose, duplicate, reorder, delay and damage. The permitted contents of memory
//!   and completions are known at each time.
//! - [`many_qps`]: the many-QP scenario: hosts with many queue pairs for reliable connections,
//!   unreliable connections and datagrams, which share receives, fail and reconnect.
//! - [`cm`]: hosts whose programs connect, reject, disconnect, abandon and crash.
//! - [`throughput`]: figures of bulk transfer over links with loss or short queues; [`paths`]: over
//!   paths of many lengths and rates.
//!
//! A run of the first three panics when a guarantee is violated. [`seeds`] runs many seeds, and
//! shrinks the first that fails.

pub mod cm;
pub mod connection;
mod host;
pub mod limits;
mod link;
pub mod many_qps;
pub mod paths;
pub mod rng;
pub mod seeds;
mod sink;
pub mod throughput;
