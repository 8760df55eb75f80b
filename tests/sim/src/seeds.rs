//! Many runs, one a seed, on several threads; and the first failure, made smaller.

use crate::limits::Limits;
use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What happened in runs.
pub trait Stats: Default + Debug + Send {
    /// Adds another run's.
    fn add(&mut self, other: &Self);
}

/// A simulation: seed, limits, whether to tell what happens. It panics when a rule is broken.
pub trait Run<S>: Fn(u64, &Limits, bool) -> S + Sync {}

impl<S, F: Fn(u64, &Limits, bool) -> S + Sync> Run<S> for F {}

/// What came of many runs.
#[derive(Debug)]
pub struct Outcome<S> {
    /// How many there were.
    pub seeds: u64,
    /// What happened in those that broke no rule.
    pub total: S,
    /// Those that broke one, in order.
    pub failed: Vec<u64>,
    /// How long it took.
    pub took: Duration,
}

/// Runs `seeds` on so many threads. Calls `progress` now and then with how many are done.
///
/// What a run that fails says goes to standard error, a line each.
pub fn run<S: Stats>(
    seeds: Range<u64>,
    threads: usize,
    run: &impl Run<S>,
    progress: impl Fn(u64) + Sync,
) -> Outcome<S> {
    // A line a failure is enough here; the replay shows the rest.
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
                            eprintln!("that was seed {seed}");
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

/// How many seeds lie between two tellings of the progress.
const PROGRESS: u64 = 1000;

/// How often a failure is tried smaller.
const SHRINKS: u32 = 400;

/// Finds narrow limits within which `seed` fails still.
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

    /// Breaks a rule in seed 7 if there are 5 operations and loss.
    fn breaks(seed: u64, limits: &Limits, _trace: bool) -> Count {
        assert!(seed != 7 || limits.ops < 5 || !limits.allow(Fault::Loss));
        Count(1)
    }

    #[test]
    fn a_failure_is_found_and_made_as_small_as_it_can_be() {
        let outcome = run(0..20, 2, &breaks, |_| ());
        assert_eq!((outcome.failed, outcome.total.0), (vec![7], 19));
        let limits = shrink(7, &breaks);
        assert_eq!(limits.ops, 5);
        assert_eq!(limits.without.len(), Fault::ALL.len() - 1);
        assert!(limits.allow(Fault::Loss) && limits.longest < 128);
    }
}
