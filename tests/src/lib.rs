//! What the tests in this package run: the command and the shared objects of this build.
//!
//! Cargo builds a package's own command for its tests, and not those of other packages, nor shared
//! objects. So the first use in each test program has cargo bring them up to date; after
//! `cargo build` with the same profile that takes a fraction of a second.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The root of the source tree.
///
/// # Panics
/// Never: the package is in a directory of the tree.
pub fn workspace() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package is in the workspace")
}

/// A file that `cargo build` makes beside the command, `urxe`: that, or a shared object.
///
/// # Panics
/// When it cannot be built.
#[track_caller]
pub fn built(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let file = DIRECTORY.get_or_init(build).join(name);
    assert!(file.exists(), "{} is missing", file.display());
    file
}

/// Has cargo build the default members with the profile of this test program, and returns the
/// directory of what they make.
fn build() -> PathBuf {
    let program = env::current_exe().expect("the system tells the path of this program");
    // TARGET/PROFILE/deps/PROGRAM.
    let directory = program.ancestors().nth(2).expect("cargo's directories");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace())
        .args(["build", "--quiet", "--locked", "--offline", "--profile"])
        .arg(match directory.file_name() {
            Some(name) if name == "debug" => "dev".as_ref(),
            name => name.expect("the profile's directory"),
        })
        .arg("--target-dir")
        .arg(directory.parent().expect("the target directory"));
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "cargo build: {status}");
    directory.to_owned()
}
