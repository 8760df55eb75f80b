//! The paths of packets between the sockets and the queue pairs.
//!
//! The calling thread does the work: a post sends at once, or is deferred and sent with the posts
//! that follow; a poll and a blocking wait receive. The progress thread ([`progress`]) does it
//! while no thread of the program calls. [`crate::scheduling`] decides which.
//!
//! - [`engine`]: the state of one process: its sockets, queue pairs, timers, lists.
//! - [`rx`]: from a socket to queue pairs. [`tx`]: what queue pairs want done, and those that wait
//!   for their turn to send. [`rooms`]: those that wait for room in a socket.
//! - [`drive`]: one round of receiving, timers and pending work. [`caller`]: the calls of programs.
//! - [`open`]: opening the network. [`leaving`]: the end of the process.
//! - [`report`]: counters.

mod caller;
mod drive;
mod engine;
mod flush_timer;
mod groups;
mod leaving;
mod open;
mod panics;
mod progress;
mod report;
mod rooms;
mod rx;
mod tx;

pub(crate) use caller::Waiter;
pub use engine::{Engine, EngineCounters};
pub use leaving::is_leaving;
pub use open::get;
pub use report::{Counts, DeviceReport, RESOURCES, Report};
