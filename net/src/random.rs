//! Numbers that nobody can guess: keys, queue pair numbers, nonces. They come straight from the
//! system's generator, not from one of the thread's own: that would be gone while a thread or the
//! process ends, when programs still call us from their destructors.

use rand::RngExt;
use rand::distr::{Distribution, StandardUniform};
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;

/// Any value of the type.
pub fn any<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    UnwrapErr(SysRng).random()
}

/// A number below `end`, which is not 0.
pub fn below(end: usize) -> usize {
    UnwrapErr(SysRng).random_range(0..end)
}
