//! The skipping of integration tests: a test with unmet needs is skipped with a line of output,
//! which `cargo xtask test` collects. With `CI=true` it fails instead.

use std::env;
use std::io::{self, Write};
use std::panic::Location;
use std::thread;

/// Reports the calling test as skipped.
///
/// # Panics
/// With `CI=true`.
#[track_caller]
pub fn skip_test(why: &str) {
    assert!(env::var("CI").as_deref() != Ok("true"), "{why}");
    let here = thread::current();
    let test = match here.name() {
        // With one test thread, libtest runs tests on the main thread.
        None | Some("main") => Location::caller().to_string(),
        Some(name) => name.to_owned(),
    };
    // Bypasses libtest, which captures the output of passing tests.
    let _ = writeln!(io::stdout(), "\nLEFT OUT: {test}: {why}");
}
