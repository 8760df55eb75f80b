//! The driver's tests once more with AddressSanitizer: its unsafe code is where memory can go wrong, and so can
//! that of the tests, which lend memory to peers.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::outcome::Outcome;
use crate::steps::run_logged;
use crate::test_log::TestLog;
use crate::toolchain::{self, UNSTABLE};

pub(crate) const NAME: &str = "sanitize";

/// What is made for a process's whole life is never freed.
const OPTIONS: &str = "detect_leaks=0";

/// It looks at how much memory the process has, and the sanitizer keeps what was freed.
const LEFT_OUT: &str = "a_flood_of_garbage_neither_stops_transfers_nor_grows_memory";

/// Builds the tests with the sanitizer, in a directory of their own, and runs them.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: {NAME}: the driver's tests with AddressSanitizer");
    let started = Instant::now();
    let mut log = TestLog::default();
    let problem = match toolchain::triple() {
        None => Some("rustc -vV does not say what it compiles for".to_owned()),
        Some(triple) => {
            let mut command = command(workspace, target, &triple);
            match run_logged(&mut command, &mut log) {
                Ok(status) if status.success() => None,
                Ok(status) => Some(status.to_string()),
                Err(error) => Some(format!("cargo could not be started: {error}")),
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
        .args(["--", "--skip", LEFT_OUT])
        .env(UNSTABLE.0, UNSTABLE.1)
        .env("CARGO_ENCODED_RUSTFLAGS", "-Zsanitizer=address")
        .env("ASAN_OPTIONS", OPTIONS);
    command
}
