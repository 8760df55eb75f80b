//! The tests of `urxe-net` and `urxe-driver` with AddressSanitizer. Memory errors are possible in
//! their unsafe code, and in tests that register memory for peers.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::logged;
use crate::outcome::Outcome;
use crate::test_log::TestLog;
use crate::toolchain::{self, UNSTABLE};

pub(crate) const NAME: &str = "sanitize";

/// Objects that live as long as the process are never freed, and a test requests more memory than
/// there is.
const OPTIONS: &str = "detect_leaks=0:allocator_may_return_null=1";

/// Tests of memory growth, which fail because the sanitizer delays the reuse of freed memory.
const LEFT_OUT: [&str; 2] = [
    "a_flood_of_garbage_neither_stops_transfers_nor_grows_memory",
    "out_of_order_queues_have_one_memory_limit",
];

/// Builds the tests with the sanitizer in a directory of their own, and runs them.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: {NAME}: the tests of urxe-net and urxe-driver with AddressSanitizer");
    let started = Instant::now();
    let mut log = TestLog::default();
    let problem = match toolchain::triple() {
        None => Some("no host triple in the output of rustc -vV".to_owned()),
        Some(triple) => {
            let mut command = command(workspace, target, &triple);
            match logged::run(&mut command, &mut log) {
                Ok(status) if status.success() => None,
                Ok(status) => Some(status.to_string()),
                Err(error) => Some(format!("cannot start cargo: {error}")),
            }
        }
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log,
    }
}

fn command(workspace: &Path, target: &Path, triple: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(workspace)
        .args([
            "test",
            "--package",
            "urxe-net",
            "--package",
            "urxe-driver",
            "--release",
            "--locked",
        ])
        .args(["--no-fail-fast", "--lib", "--tests", "--target", triple])
        .arg("--target-dir")
        .arg(target.join(NAME))
        .arg("--")
        .args(LEFT_OUT.iter().flat_map(|test| ["--skip", test]))
        .env(UNSTABLE.0, UNSTABLE.1)
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            "-Zsanitizer=address\x1f-Cdebug-assertions",
        )
        .env("ASAN_OPTIONS", OPTIONS);
    command
}

#[cfg(test)]
mod tests {
    use super::LEFT_OUT;

    const HOSTILE: &str = include_str!("../../driver/tests/hostile.rs");

    /// A name that matches no test leaves nothing out.
    #[test]
    fn the_tests_that_are_left_out_exist() {
        for test in LEFT_OUT {
            assert!(HOSTILE.contains(&format!("fn {test}()")), "{test}");
        }
    }
}
