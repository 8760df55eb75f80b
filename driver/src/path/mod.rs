//! The paths of packets between the sockets and the queue pairs.
//!
//! The calling thread does the work: a post sends at once, or is deferred and sent with the posts
//! that follow; a poll and a blocking wait receive. The progress thread (`progress`) does it
//! while no thread of the program calls. `crate::scheduling` decides which.
//!
//! - `engine`: the state of one process: its sockets, queue pairs, timers, lists.
//! - `rx`: from a socket to queue pairs. `tx`: application of effects, and those that wait
//!   to be scheduled. `writable`: those that wait until a socket is writable.
//! - `drive`: one round of receiving, timers and pending work. `caller`: the calls of programs.
//! - `open`: opening the network. `exit`: the end of the process.
//! - Counters: `report`. `mtu_check`: the search for a smaller MTU after timeouts.

mod caller;
mod deferred_lists;
mod drive;
mod engine;
mod exit;
mod groups;
mod mtu_check;
mod open;
mod panics;
mod progress;
mod report;
mod rx;
mod timer_fd;
mod tx;
mod writable;

pub(crate) use caller::Waiter;
pub use engine::{Engine, EngineCounters};
pub use exit::is_exiting;
pub use open::get;
pub use report::{Counts, DeviceReport, RESOURCES, Report};
