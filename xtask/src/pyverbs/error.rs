//! Errors that prevent running the suite.

use std::io;
use std::path::{Path, PathBuf};

/// An error that prevents running the suite.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The module pyverbs is missing.
    #[error(
        "the Python module pyverbs is missing: apt-get install python3-pyverbs (cargo xtask test \
         does so, as root)"
    )]
    NoPyverbs,
    /// The tests are missing.
    #[error(
        "rdma-core's tests are not in {0}; they are in the package python3-pyverbs, unless \
         it was installed without documentation"
    )]
    NoSuite(String),
    /// The root of another release cannot be made.
    #[error("{0}")]
    NoRoot(String),
    /// gzip failed.
    #[error("cannot decompress {0}; see the output of gzip above")]
    NotUnpacked(PathBuf),
    /// cargo failed.
    #[error("cannot build urxe; see the output of cargo above")]
    NotBuilt,
    /// A file or program cannot be used.
    #[error("{path}: {source}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Adds a path to an error of the system.
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::File { path, source }
    }
}
