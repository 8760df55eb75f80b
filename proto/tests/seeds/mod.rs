//! Runs of a simulation, one a seed, on all processors.
//!
//! - `URXE_SIM_SEEDS=N` runs N seeds instead of the usual number.
//! - `URXE_SIM_SEED=S` runs seed S alone and tells what happens.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What happened in runs.
pub trait Stats: Default + Debug + Send {
    /// Adds another run's.
    fn add(&mut self, other: &Self);
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let parsed = value.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{variable} is {value:?} and should be a number")))
}

/// Runs seeds, `usual` of them unless the environment says otherwise; `run` gets a seed, and whether
/// to tell what happens. Returns how many there were, and what happened in all of them; `None` when it
/// was one seed that somebody wanted to watch.
///
/// # Panics
/// When a run does, after all of them; the message says how to watch one in `program`.
pub fn run_all<S: Stats>(
    program: &str,
    usual: u64,
    run: impl Fn(u64, bool) -> S + Sync,
) -> Option<(u64, S)> {
    if let Some(seed) = number("URXE_SIM_SEED") {
        eprintln!("{:#?}", run(seed, true));
        return None;
    }
    // A line a failure is enough here; the replay shows the rest.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let seeds = number("URXE_SIM_SEEDS").unwrap_or(usual);
    let next = AtomicU64::new(0);
    let total = Mutex::new(S::default());
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    match catch_unwind(AssertUnwindSafe(|| run(seed, false))) {
                        Ok(stats) => total.lock().unwrap().add(&stats),
                        Err(_) => {
                            eprintln!("that was seed {seed}");
                            failed
                                .lock()
                                .unwrap_or_else(PoisonError::into_inner)
                                .push(seed);
                        }
                    }
                }
            });
        }
    });
    drop(std::panic::take_hook());
    let mut failed = failed.into_inner().unwrap();
    failed.sort_unstable();
    if let Some(seed) = failed.first() {
        panic!(
            "{} of {seeds} seeds failed: {:?}\nwatch one with URXE_SIM_SEED={seed} \
             cargo test -p urxe-proto --test {program}",
            failed.len(),
            &failed[..failed.len().min(20)],
        );
    }
    let total = total.into_inner().unwrap();
    eprintln!("{seeds} seeds: {total:#?}");
    Some((seeds, total))
}
