//! Random work over links that lose, duplicate, reorder, delay and damage, with virtual time.
//!
//! - `URXE_SIM_SEEDS=N` runs N seeds instead of the usual number.
//! - `URXE_SIM_SEED=S` runs seed S alone and tells what happens.

mod sim;

use sim::Stats;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Seeds in an ordinary run.
const SEEDS: u64 = if cfg!(debug_assertions) { 500 } else { 10_000 };

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let parsed = value.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{variable} is {value:?} and should be a number")))
}

#[test]
fn every_operation_takes_effect_once_and_in_order_over_bad_links() {
    if let Some(seed) = number("URXE_SIM_SEED") {
        eprintln!("{:#?}", sim::run(seed, true));
        return;
    }
    // A line a failure is enough here; the replay shows the rest.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let seeds = number("URXE_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let total = Mutex::new(Stats::default());
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
                    match catch_unwind(AssertUnwindSafe(|| sim::run(seed, false))) {
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
             cargo test -p urxe-proto --test simulator",
            failed.len(),
            &failed[..failed.len().min(20)],
        );
    }
    let total = total.into_inner().unwrap();
    eprintln!("{seeds} seeds: {total:#?}");
    if seeds >= 100 {
        // The links were bad indeed, or nothing was shown.
        assert!(total.retransmitted > 0 && total.duplicates > 0 && total.timeouts > 0);
        assert!(total.sequence_naks > 0 && total.rnr_naks > 0 && total.responses_lost > 0);
        assert!(total.bad_icrc > 0 && total.drains > 0);
        // One damaged packet in 2^16 has a right ICRC.
        assert!(total.undetected <= 3 + total.damaged / 10_000);
    }
}
