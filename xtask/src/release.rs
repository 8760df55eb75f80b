//! Builds programs for commands that run or measure them, and runs programs that must succeed.

use std::env;
use std::path::Path;
use std::process::Command;

/// The packages of the command, the library and the preloaded objects.
pub(crate) const PRODUCTS: [&str; 4] = ["urxe-cli", "liburxe", "urxe-preload", "urxe-rspreload"];

/// Builds packages of this workspace in the release profile.
pub(crate) fn build(packages: &[&str], workspace: &Path, target: &Path) -> Result<(), String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--quiet", "--release", "--target-dir"])
        .arg(target)
        .args(packages.iter().flat_map(|package| ["-p", package]));
    succeed(&mut cargo)
}

/// Runs a program and fails unless its exit status is 0.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{:?} failed: {status}", command.get_program())),
        Err(error) => Err(format!("{:?}: {error}", command.get_program())),
    }
}
