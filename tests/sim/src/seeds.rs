//! Runs of many seeds on several threads, and shrinking of the first failure.

use crate::limits::Limits;
use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The counts of runs.
pub trait Stats: Default + Debug + Send {
    /// Adds the counts of another run.
    fn add(&mut self, other: &Self);
}

/// A simulation. Its arguments are the seed, the limits, and whether to print the events. It panics
/// when a guarantee is violated.
pub trait Run<S>: Fn(u64, &Limits, bool) -> S + Sync {}

impl<S, F: Fn(u64, &Limits, bool) -> S + Sync> Run<S> for F {}

/// The result of many runs.
#[derive(Debug)]
pub struct Outcome<S> {
    /// The number of runs.
    pub seeds: u64,
    /// The counts of the successful runs.
    pub total: S,
    /// The seeds of the failed runs, in ascending order.
    pub failed: Vec<u64>,
    /// The duration.
    pub took: Duration,
}

/// Runs `seeds` on `threads` threads. Calls `progress` with the number of runs after every
/// `PROGRESS` seeds.
///
/// The panic message of a failed run goes to standard error.
pub fn run<S: Stats>(
    seeds: Range<u64>,
    threads: usize,
    run: &impl Run<S>,
    progress: impl Fn(u64) + Sync,
) -> Outcome<S> {
    // One line per failure is enough here; the replay prints the rest.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let started = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(S::default());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    if seed > seeds.start && (seed - seeds.start).is_multiple_of(PROGRESS) {
                        progress(seed - seeds.start);
                    }
                    match attempt(seed, &Limits::default(), run) {
                        Some(stats) => lock(&total).add(&stats),
                        None => {
                            eprintln!("seed {seed} failed");
                            lock(&failed).push(seed);
                        }
                    }
                }
            });
        }
    });
    drop(std::panic::take_hook());
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_unstable();
    Outcome {
        seeds: seeds.end - seeds.start,
        total: total.into_inner().unwrap_or_else(PoisonError::into_inner),
        failed,
        took: started.elapsed(),
    }
}

/// The number of seeds between two calls of `progress`.
const PROGRESS: u64 = 1000;

/// The maximum number of attempts to shrink a failure.
const SHRINKS: u32 = 400;

/// Searches narrow limits within which `seed` still fails.
pub fn shrink<S>(seed: u64, run: &impl Run<S>) -> Limits {
    std::panic::set_hook(Box::new(|_| ()));
    let mut limits = Limits::default();
    let mut left = SHRINKS;
    'smaller: loop {
        for smaller in limits.clone().smaller() {
            if left == 0 {
                break 'smaller;
            }
            left -= 1;
            if attempt(seed, &smaller, run).is_none() {
                limits = smaller;
                continue 'smaller;
            }
        }
        break;
    }
    drop(std::panic::take_hook());
    limits
}

fn attempt<S>(seed: u64, limits: &Limits, run: &impl Run<S>) -> Option<S> {
    catch_unwind(AssertUnwindSafe(|| run(seed, limits, false))).ok()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Fault;

    #[derive(Default, Debug)]
    struct Count(u64);

    impl Stats for Count {
        fn add(&mut self, other: &Self) {
            self.0 += other.0;
        }
    }

    /// A simulation that fails for seed 7 with at least 5 operations and loss.
    fn breaks(seed: u64, limits: &Limits, _trace: bool) -> Count {
        assert!(seed != 7 || limits.ops < 5 || !limits.allow(Fault::Loss));
        Count(1)
    }

    #[test]
    fn failure_is_found_and_shrunk() {
        let outcome = run(0..20, 2, &breaks, |_| ());
        assert_eq!((outcome.failed, outcome.total.0), (vec![7], 19));
        let limits = shrink(7, &breaks);
        assert_eq!(limits.ops, 5);
        assert_eq!(limits.without.len(), Fault::ALL.len() - 1);
        assert!(limits.allow(Fault::Loss) && limits.longest < 128);
    }
}
