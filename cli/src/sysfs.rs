//! The `/sys/class/infiniband` view as an option and hidden subcommands of this command.

use std::path::PathBuf;
use std::process::ExitCode;

use urxe_sysfs::counter_service;

use crate::library::{self, PRELOAD};

pub use urxe_sysfs::Variable;

/// Whether and how to show the devices in sysfs.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Show them where possible
    Auto,
    /// Fail where it is not possible
    Yes,
    /// Use the preload object, even where mounts are possible
    Preload,
    /// Do not show them
    No,
}

/// Serve the counters in the sysfs view
#[derive(clap::Args)]
pub struct CounterArguments {
    /// Process ID of the program that the view belongs to
    program: u32,
    /// Directory of the devices, where the view is not mounted
    #[arg(long)]
    root: Option<PathBuf>,
    /// Run the service instead of starting it in the background
    #[arg(long)]
    detached: bool,
}

/// Shows the devices to this process and to the program executed with the returned variables.
///
/// # Errors
/// A message, if the view was required and is not possible.
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

/// Runs the subcommand `sysfs-trial`.
pub fn trial() -> ExitCode {
    exit_code("", urxe_sysfs::trial())
}

/// Runs the subcommand `sysfs-counters`.
pub fn counters(arguments: CounterArguments) -> ExitCode {
    let arguments = counter_service::Arguments {
        program: arguments.program,
        root: arguments.root,
        detached: arguments.detached,
    };
    let prefix = format!("urxe {}: ", counter_service::COMMAND);
    let served = counter_service::run(&arguments).map_err(|error| error.to_string());
    exit_code(&prefix, served)
}

fn exit_code(prefix: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{prefix}{error}");
            ExitCode::FAILURE
        }
    }
}
