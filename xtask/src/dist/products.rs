//! The build from which packages are made.

use std::path::PathBuf;

/// The version of all packages.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The files of a build, from which packages are made.
pub(super) struct Products {
    /// The target triple without a version of glibc.
    pub(super) target: String,
    /// The directory with the command and the shared objects.
    pub(super) directory: PathBuf,
    /// The command for this host, which writes manual pages and completions.
    pub(super) runnable: PathBuf,
    /// Whether packages are compressed at a high level, which takes half a minute for files with
    /// symbols.
    pub(super) compressed: bool,
}

impl Products {
    /// Returns the processor architecture, the first part of the target triple.
    pub(super) fn architecture(&self) -> &str {
        self.target.split('-').next().unwrap_or(&self.target)
    }

    /// Returns whether the C library is musl.
    pub(super) fn is_musl(&self) -> bool {
        is_musl(&self.target)
    }
}

/// Returns whether the C library of a target is musl.
pub(super) fn is_musl(target: &str) -> bool {
    target.contains("-musl")
}
