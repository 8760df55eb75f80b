//! Builds programs for commands that run or measure them, and runs programs that must succeed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
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

/// Builds the library, and a C program of `benches/` against it. Returns the path of the program. A
/// caller that runs it removes `LD_LIBRARY_PATH`, which cargo sets to a directory that may have a
/// debug build of the library.
pub(crate) fn build_c(name: &str, workspace: &Path, target: &Path) -> Result<PathBuf, String> {
    let program = target.join("bench").join(name);
    fs::create_dir_all(target.join("bench"))
        .map_err(|error| format!("{}: {error}", program.display()))?;
    build(&PRODUCTS, workspace, target)?;
    succeed(
        Command::new("gcc")
            .args(["-O2", "-pthread", "-I"])
            .arg(workspace.join("include"))
            .arg("-o")
            .arg(&program)
            .arg(workspace.join(format!("benches/{name}.c")))
            .arg("-L")
            .arg(target.join("release"))
            .arg("-l:liburxe.so")
            .arg(format!("-Wl,-rpath,{}", target.join("release").display())),
    )?;
    Ok(program)
}

/// Runs a program and fails unless its exit status is 0.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{:?} failed: {status}", command.get_program())),
        Err(error) => Err(format!("{:?}: {error}", command.get_program())),
    }
}
