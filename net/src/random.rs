//! Unpredictable random values: keys, queue pair numbers, nonces.
//!
//! They come from the system's generator directly. A thread-local generator is destroyed while a
//! thread or the process ends, but destructors of the program may still call this library.

use rand::RngExt;
use rand::distr::{Distribution, StandardUniform};
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;

/// Returns any value of the type.
pub fn any<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    UnwrapErr(SysRng).random()
}

/// Returns a number below `end`, which must not be 0.
pub fn below(end: usize) -> usize {
    UnwrapErr(SysRng).random_range(0..end)
}
