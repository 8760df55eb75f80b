//! Simulations of the protocol with virtual time. All that is random in a run comes from one seed, so a
//! seed is a run: what failed once fails again, can be made smaller, and can be watched.
//!
//! - [`connection`]: two endpoints of a reliable connection, or an extended one, with random work over links
//!   that lose, duplicate, reorder, delay and damage. What memory and completions may be is known at
//!   each moment.
//! - [`crowd`]: hosts with many queue pairs, reliable, unreliable and of datagrams, that share receives, fail
//!   and connect anew.
//! - [`cm`]: hosts whose programs connect, reject, disconnect, forget and crash.
//! - [`throughput`]: bulk transfer over links that lose or queue little, in numbers.
//!
//! A run of the first three panics when a rule is broken. [`seeds`] runs many, and makes the first that failed smaller.

pub mod cm;
pub mod connection;
pub mod crowd;
mod host;
pub mod limits;
mod link;
pub mod rng;
pub mod seeds;
mod sink;
pub mod throughput;
