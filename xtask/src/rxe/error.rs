//! Errors of building and running the rxe guest, with their remedies.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// An error of building, booting or evaluating the guest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A required program is missing.
    #[error("the program `{program}` is missing; install {remedy}")]
    Missing {
        /// The program.
        program: String,
        /// The package that contains it.
        remedy: &'static str,
    },
    /// A program failed.
    #[error("`{command}` failed ({status}){output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// The end of its output, if it was captured.
        output: String,
    },
    /// Packages cannot be downloaded.
    #[error("cannot download Debian packages: {source}")]
    Download {
        /// The error of apt-get.
        source: Box<Error>,
    },
    /// The machine is not x86-64.
    #[error("the guest is an x86-64 machine and runs programs of this machine: run this on x86-64")]
    OtherArchitecture,
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There are no results of a complete run.
    #[error("no complete run to repeat a part of: run `cargo xtask rxe` first (no {results})")]
    NoCompleteRun {
        /// The directory of the results.
        results: PathBuf,
    },
    /// The downloaded packages lack something.
    #[error("no {what} in the fetched packages; delete {directory} to fetch them again")]
    NotInPackages {
        /// The missing item.
        what: String,
        /// The directory of the packages.
        directory: PathBuf,
    },
    /// A capture has no RoCE packets.
    #[error("{capture} has no RoCE packet; see tcpdump's messages on the guest's console")]
    NothingCaptured {
        /// The capture file.
        capture: PathBuf,
    },
    /// The guest ended before its job.
    #[error("the guest ended before its job; see its console in {console}")]
    GuestDied {
        /// The console's log.
        console: PathBuf,
    },
    /// The job failed.
    #[error("the guest's job failed with status {status}; see its console in {console}")]
    JobFailed {
        /// The script's exit status.
        status: i32,
        /// The console's log.
        console: PathBuf,
    },
    /// No cell matches the pattern of `--only`.
    #[error("no cell matches `{pattern}`; see `cargo xtask rxe --list`")]
    NothingMatches {
        /// The pattern.
        pattern: String,
    },
}

impl Error {
    /// Returns whether this machine lacks a requirement, as opposed to a failure.
    pub(crate) fn is_a_need(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. } | Self::Download { .. } | Self::OtherArchitecture
        )
    }
}

/// The result type of this module.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Adds the path to an I/O error.
pub(crate) trait AtPath<T> {
    /// Converts the error into one with the path.
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })
    }
}

/// Runs a command and returns its standard output. `remedy` is the package of the program.
pub(crate) fn run(command: &mut Command, remedy: &'static str) -> Result<String> {
    run_from(command, remedy, None)
}

/// Runs a command with another program's output as its input.
pub(crate) fn run_from(
    command: &mut Command,
    remedy: &'static str,
    input: Option<ChildStdout>,
) -> Result<String> {
    let output = command
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .output()
        .map_err(|error| not_started(command, remedy, error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let end: Vec<&str> = stderr.lines().rev().take(8).collect();
    let end: Vec<&str> = end.into_iter().rev().collect();
    Err(Error::Failed {
        command: words(command),
        status: output.status.to_string(),
        output: format!(":\n{}", end.join("\n")),
    })
}

/// Returns the error of a command that cannot be started.
pub(crate) fn not_started(command: &Command, remedy: &'static str, error: io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    if error.kind() == io::ErrorKind::NotFound {
        Error::Missing { program, remedy }
    } else {
        Error::Failed {
            command: words(command),
            status: error.to_string(),
            output: String::new(),
        }
    }
}

/// Returns the command line for messages.
pub(crate) fn words(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
