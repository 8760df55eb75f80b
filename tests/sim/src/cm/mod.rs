//! Programs that connect, accept, reject, disconnect, forget and crash at random, over a network that
//! loses, duplicates, delays and reorders their messages, with virtual time. Each attempt must come
//! to the end that fits, at both sides, and nothing may be left behind.

mod host;
mod record;
mod world;

pub use world::{Stats, run};
