//! The view of urxe's devices in `/sys/class/infiniband`, for programs and scripts that read it.
//!
//! - `tree`: the files of a device.
//! - `mount`: mounts the view for one program and its children.
//! - `preload`: redirects paths to the view where mounts are forbidden.
//! - `counter_service`: a process that keeps the counters up to date.

use std::path::PathBuf;
use std::process::{Command, Stdio};

pub mod counter_service;
mod environment;
mod mount;
mod preload;
mod tree;
mod variable;

pub use preload::PRELOAD;
pub use variable::Variable;

/// Whether and how to show the devices in sysfs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Show them where possible.
    Auto,
    /// Fail where it is not possible.
    Yes,
    /// Use the preload object, even where mounts are possible.
    Preload,
    /// Do not show them.
    No,
}

/// Shows the devices to this process and its children, or to the program that it executes with the
/// returned variables. `object` finds the shared object that programs preload ([`PRELOAD`]).
///
/// # Errors
/// Fails if the view is required and not possible.
pub fn show(
    view: View,
    object: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<Vec<Variable>, String> {
    let shown = match view {
        View::No => return Ok(Vec::new()),
        View::Preload => show_preloaded(object),
        View::Auto | View::Yes => show_mounted().or_else(|mounts| {
            tracing::info!("cannot mount the sysfs view: {mounts}");
            show_preloaded(object)
                .map_err(|error| format!("{mounts}; preloading fails too: {error}"))
        }),
    };
    match (shown, view) {
        (Err(error), View::Auto) => {
            tracing::info!("the devices are not visible in /sys: {error}");
            Ok(Vec::new())
        }
        (Err(error), _) => Err(format!("cannot show the devices in /sys: {error}")),
        (Ok(variables), _) => Ok(variables),
    }
}

fn show_mounted() -> Result<Vec<Variable>, String> {
    try_out()?;
    mount::show().map_err(|error| error.to_string())?;
    counter_service::start(None).map_err(no_counter_service)?;
    Ok(Vec::new())
}

fn show_preloaded(
    object: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<Vec<Variable>, String> {
    let files = preload::Files::write(&object()?).map_err(|error| error.to_string())?;
    // From here on the service removes the files.
    counter_service::start(Some(files.root())).map_err(no_counter_service)?;
    Ok(files.into_variables())
}

fn no_counter_service(error: std::io::Error) -> String {
    format!("cannot start the counter service: {error}")
}

/// The hidden subcommand that calls [`trial`]; the command that calls [`show`] must provide it.
pub const TRIAL: &str = "sysfs-trial";

/// Tries the mounts in another process first: some systems permit creating a user namespace but
/// nothing in it, and a process cannot leave the namespace again.
fn try_out() -> Result<(), String> {
    let trial = Command::new("/proc/self/exe")
        .arg(TRIAL)
        .stdin(Stdio::null())
        .output();
    match trial {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("cannot try the mounts: {error}")),
    }
}

/// Implements [`TRIAL`]: mounts the view for this process, which then exits.
///
/// # Errors
/// The reason why mounts are not possible.
pub fn trial() -> Result<(), String> {
    mount::show().map_err(|error| error.to_string())
}
