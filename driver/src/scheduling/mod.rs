//! Scheduling: which thread receives, which sends and acknowledgements are deferred, and how much
//! is in flight to one destination.
//!
//! The policies here make no system call and know no object of the driver. [`crate::path`] asks
//! them, and does what they decide. [`limits`] has their constants.
//!
//! - [`affinity`]: which receive socket serves a completion queue.
//! - [`handoff`]: either the progress thread or threads of the program receive.
//! - [`blocking`]: whether a blocking call receives before it sleeps.
//! - [`polling`]: the record of the program's polls, and the detector of a program that polls
//!   memory. [`adaptive`]: how the progress thread sleeps, by that record. [`watchdog`]: how it
//!   notices that the polls have stopped.
//! - [`contention`]: whether a thread that waits for packets sleeps, or polls and yields.
//! - [`coalescing`]: which sends are deferred; [`delayed_ack`]: which acknowledgements;
//!   [`deferred`]: the lists of queue pairs with either, and the flush timer.
//! - [`destinations`]: the limit of bytes in flight to one process of this host.
//! - [`timers`]: the deadlines of queue pairs. [`moderation`]: the notifications of completion
//!   queues. [`one_shot`]: what these policies need of a timer of the kernel.

pub(crate) mod adaptive;
pub(crate) mod affinity;
pub(crate) mod blocking;
pub(crate) mod coalescing;
pub(crate) mod contention;
pub(crate) mod deferred;
pub(crate) mod delayed_ack;
pub(crate) mod destinations;
pub(crate) mod handoff;
pub(crate) mod limits;
pub mod moderation;
pub(crate) mod one_shot;
pub(crate) mod polling;
pub(crate) mod timers;
pub(crate) mod watchdog;
