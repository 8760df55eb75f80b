//! The command and the shared objects of this build, for the tests of this package.
//!
//! Cargo builds the commands of a package for its own tests only, and no shared objects. The first
//! use in each test program therefore runs `cargo build` with the same profile, which takes a
//! fraction of a second if everything is up to date.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the root of the source tree.
///
/// # Panics
/// Never: the package is in a directory of the tree.
pub fn workspace() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package is in the workspace")
}

/// Returns the path of a product of `cargo build`: the command `urxe` or a shared object.
///
/// # Panics
/// If the build fails.
#[track_caller]
pub fn built(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let file = DIRECTORY.get_or_init(build).join(name);
    assert!(file.exists(), "{} is missing", file.display());
    file
}

/// Builds the default members with the profile of this test program. Returns the directory of the
/// products.
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
