//! The primitives of the modules that a model checker compiles with its own.
#![forbid(unsafe_code)]

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
// Not the mutex of the standard library: its tests for poisoning take 30 instructions more in a
// polled SEND or receive.
pub(crate) use urxe_driver::sync::{Mutex, MutexGuard, lock};
