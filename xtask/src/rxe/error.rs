//! What can keep the rxe guest from being built or run, said so that the reader knows what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// Why the guest could not be built, booted or judged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A program of this machine is missing.
    #[error("the program `{program}` is missing here; install {remedy}")]
    Missing {
        /// What was looked for.
        program: String,
        /// What has it.
        remedy: &'static str,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}){output}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it said, if that was captured.
        output: String,
    },
    /// Packages could not be downloaded.
    #[error("cannot download Debian packages: {source}")]
    Download {
        /// What apt-get says.
        source: Box<Error>,
    },
    /// This machine is not one that the guest's packages and urxe's library are both for.
    #[error("the guest is an x86-64 machine, and runs what was built here: build on x86-64")]
    OtherArchitecture,
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The fetched packages do not have what they should.
    #[error("no {what} in the fetched packages; delete {directory} to fetch them again")]
    NotInPackages {
        /// What was looked for.
        what: String,
        /// Where.
        directory: PathBuf,
    },
    /// A capture holds nothing that is looked for.
    #[error("{capture} holds no RoCE packet; the guest's console has tcpdump's own words")]
    NothingCaptured {
        /// tcpdump's file.
        capture: PathBuf,
    },
    /// The guest stopped before its job was done.
    #[error("the guest stopped before its job was done; its console is in {console}")]
    GuestDied {
        /// The console's log.
        console: PathBuf,
    },
    /// The job ended early.
    #[error("the guest's job failed with status {status}; its console is in {console}")]
    JobFailed {
        /// The script's exit status.
        status: i32,
        /// The console's log.
        console: PathBuf,
    },
    /// The pattern of `--only` matches nothing.
    #[error("no cell matches `{pattern}`; `cargo xtask rxe --list` shows them all")]
    NothingMatches {
        /// What was asked for.
        pattern: String,
    },
}

impl Error {
    /// Whether it is this machine that lacks something, rather than anything having gone wrong.
    pub(crate) fn is_a_need(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. } | Self::Download { .. } | Self::OtherArchitecture
        )
    }
}

/// The result of anything here.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Attaches the path to an input or output error.
pub(crate) trait AtPath<T> {
    /// The same result, its error knowing the file.
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

/// Runs a command to its end and returns what it wrote to standard output. `remedy` is the package
/// that has the program.
pub(crate) fn run(command: &mut Command, remedy: &'static str) -> Result<String> {
    run_from(command, remedy, None)
}

/// The same, with another program's output as its input.
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
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let end: Vec<&str> = said.lines().rev().take(8).collect();
    let end: Vec<&str> = end.into_iter().rev().collect();
    Err(Error::Failed {
        command: words(command),
        status: output.status.to_string(),
        output: format!(":\n{}", end.join("\n")),
    })
}

/// The error for a command that did not even start.
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

/// The command line, for messages.
pub(crate) fn words(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
