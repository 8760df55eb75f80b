//! The view of `/sys/class/infiniband` as options and hidden subcommands of this command.

use std::path::PathBuf;
use std::process::ExitCode;

use urxe_sysfs::keeper;

use crate::library::{self, PRELOAD};

pub use urxe_sysfs::Variable;

/// Whether to show the devices in sysfs.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Where it is possible
    Auto,
    /// In any case: fail where it is not possible
    Yes,
    /// In any case, by preloading an object, also where mounts would do
    Preload,
    /// Not
    No,
}

/// Keep the counters in sysfs
#[derive(clap::Args)]
pub struct KeeperArguments {
    /// The program for which the files are
    program: u32,
    /// Where the devices are, if not in mounts of this process's own
    #[arg(long)]
    root: Option<PathBuf>,
    /// Be the keeper; otherwise start it
    #[arg(long)]
    detached: bool,
}

/// Shows the devices to this process and what it executes with the returned variables.
///
/// # Errors
/// A message, when the view was demanded and is not possible.
pub fn show(view: View) -> Result<Vec<Variable>, String> {
    let view = match view {
        View::Auto => urxe_sysfs::View::Auto,
        View::Yes => urxe_sysfs::View::Yes,
        View::Preload => urxe_sysfs::View::Preload,
        View::No => urxe_sysfs::View::No,
    };
    let object = || library::find(PRELOAD).map_err(|error| error.to_string());
    urxe_sysfs::show(view, object)
}

/// The subcommand `sysfs-trial`.
pub fn trial() -> ExitCode {
    ended("", urxe_sysfs::trial())
}

/// The subcommand `sysfs-keeper`.
pub fn keeper(arguments: KeeperArguments) -> ExitCode {
    let arguments = keeper::Arguments {
        program: arguments.program,
        root: arguments.root,
        detached: arguments.detached,
    };
    let prefix = format!("urxe {}: ", keeper::COMMAND);
    let kept = keeper::keeper(&arguments).map_err(|error| error.to_string());
    ended(&prefix, kept)
}

fn ended(prefix: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{prefix}{error}");
            ExitCode::FAILURE
        }
    }
}
