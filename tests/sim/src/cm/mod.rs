//! Programs that connect, accept, reject, disconnect, abandon and crash at random, over a network
//! that loses, duplicates, delays and reorders their messages, in virtual time. Each attempt must
//! end consistently on both sides, and no state may remain.

mod host;
mod record;
mod stats;
mod world;

pub use stats::Stats;
pub use world::run;
