//! The compiler that is installed.

use std::process::Command;

/// Lets a stable compiler take the options that begin with -Z, such as those for sanitizers.
pub(crate) const UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// What it compiles for: to name that keeps flags away from procedural macros and build scripts.
pub(crate) fn triple() -> Option<String> {
    let output = Command::new("rustc").arg("-vV").output().ok()?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| Some(line.strip_prefix("host: ")?.to_owned()))
}
