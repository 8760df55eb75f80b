//! The safe Rust API over the loopback interface. `rust_api_drop.rs` tests that dropped objects
//! leave nothing behind, which needs a process of its own.

mod buffers;
mod end;
mod failures;
mod limits;
mod memory;
mod operations;
mod processes;
mod shared;
mod states;
mod threads;
mod unreliable;
mod waiting;
