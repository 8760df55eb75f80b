//! Simulations of the protocol with virtual time. All that is random in a run comes from one seed, so a
//! seed is a run: what failed once fails again, can be made smaller, and can be watched.
//!
//! - [`connection`]: two endpoints of a reliable connection, or an extended one, with random work over links
//!   that lose, duplicate, reorder, delay and damage. What memory and completions may be is known at
//!   each moment.
//! - [`cm`]: hosts whose programs connect, reject, disconnect, forget and crash.
//!
//! A run panics when a rule is broken. [`seeds`] runs many, and makes the first that failed smaller.

pub mod cm;
pub mod connection;
pub mod limits;
pub mod rng;
pub mod seeds;
