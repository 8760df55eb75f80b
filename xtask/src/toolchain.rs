//! The installed compiler.

use std::process::Command;

/// Makes a stable compiler accept -Z options, such as those for sanitizers.
pub(crate) const UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// Returns the target triple. Naming it keeps flags from procedural macros and build scripts.
pub(crate) fn triple() -> Option<String> {
    let output = Command::new("rustc").arg("-vV").output().ok()?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| Some(line.strip_prefix("host: ")?.to_owned()))
}
