//! The safe Rust API over the loopback interface. What happens when its objects are dropped is counted in
//! a process of its own, see `rust_api_drop.rs`.

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
