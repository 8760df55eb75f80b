//! The rule of all integration tests: where something is missing, a test is left out and says so on
//! a line that `cargo xtask test` collects; under `CI=true` that is a failure.

use std::env;
use std::io::{self, Write};
use std::panic::Location;
use std::thread;

/// Reports the calling test as left out.
///
/// # Panics
/// Under `CI=true`.
#[track_caller]
pub fn left_out(why: &str) {
    assert!(env::var("CI").as_deref() != Ok("true"), "{why}");
    let here = thread::current();
    let test = match here.name() {
        // With one test thread, libtest runs the test on the main thread.
        None | Some("main") => Location::caller().to_string(),
        Some(name) => name.to_owned(),
    };
    // Written directly, because libtest hides what passing tests print.
    let _ = writeln!(io::stdout(), "\nLEFT OUT: {test}: {why}");
}
