//! The primitives of the modules that a model checker compiles with its own.
#![forbid(unsafe_code)]

pub(crate) use crate::wait::lock;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
