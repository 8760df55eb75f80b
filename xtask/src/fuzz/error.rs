//! Errors that prevent running the targets.

use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{}: {source}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("no target {name}; the targets are {}", known.join(", "))]
    NoTarget { name: String, known: Vec<String> },
    #[error("cannot build the targets: {0}; a C++ compiler is required")]
    Build(String),
    #[error("no host triple in the output of rustc -vV")]
    NoTriple,
}

/// Adds a path to an error of the system.
pub(super) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}
