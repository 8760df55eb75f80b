//! Building what commands start and measure, and starting programs that must succeed.

use std::env;
use std::path::Path;
use std::process::Command;

/// The packages whose products people use: the command, the library, the objects that programs preload.
pub(crate) const PRODUCTS: [&str; 4] = ["urxe-cli", "liburxe", "urxe-preload", "urxe-rspreload"];

/// Builds packages of this workspace as they are released.
pub(crate) fn build(packages: &[&str], workspace: &Path, target: &Path) -> Result<(), String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--quiet", "--release", "--target-dir"])
        .arg(target)
        .args(packages.iter().flat_map(|package| ["-p", package]));
    succeed(&mut cargo)
}

/// Runs a program to its end, which must be a good one.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{:?} ended with {status}", command.get_program())),
        Err(error) => Err(format!("{:?}: {error}", command.get_program())),
    }
}
