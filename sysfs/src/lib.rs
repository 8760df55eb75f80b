//! The devices as programs and scripts look for them in `/sys/class/infiniband`.
//!
//! - `tree`: what is to be seen of a device.
//! - `mount`: puts it where it is looked for, for one program and what it starts.
//! - `preload`: where that is forbidden, has the program look elsewhere.
//! - `keeper`: a process that keeps the counters true.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

mod environment;
pub mod keeper;
mod mount;
mod preload;
mod tree;

pub use preload::PRELOAD;

/// Whether to show the devices in sysfs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Where it is possible.
    Auto,
    /// In any case: fail where it is not possible.
    Yes,
    /// In any case, by preloading an object, also where mounts would do.
    Preload,
    /// Not at all.
    No,
}

/// A variable for the program's environment.
pub type Variable = (&'static str, OsString);

/// Shows the devices to this process, or to the program that it executes with the returned variables, and
/// to their children. `object` finds the shared object that programs preload ([`PRELOAD`]).
///
/// # Errors
/// When it was to be done in any case and cannot be.
pub fn show(
    view: View,
    object: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<Vec<Variable>, String> {
    let shown = match view {
        View::No => return Ok(Vec::new()),
        View::Preload => show_preloaded(object),
        View::Auto | View::Yes => show_mounted().or_else(|mounts| {
            tracing::info!("no mounts for the devices: {mounts}");
            show_preloaded(object).map_err(|error| format!("{mounts}; nor by preloading: {error}"))
        }),
    };
    match (shown, view) {
        (Err(error), View::Auto) => {
            tracing::info!("the devices are not to be seen in /sys: {error}");
            Ok(Vec::new())
        }
        (Err(error), _) => Err(format!("the devices cannot be shown in /sys: {error}")),
        (Ok(variables), _) => Ok(variables),
    }
}

fn show_mounted() -> Result<Vec<Variable>, String> {
    try_out()?;
    mount::show().map_err(|error| error.to_string())?;
    keeper::start(None).map_err(no_keeper)?;
    Ok(Vec::new())
}

fn show_preloaded(
    object: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<Vec<Variable>, String> {
    let files = preload::Files::write(&object()?).map_err(|error| error.to_string())?;
    // The files are the keeper's to remove, once there is one.
    keeper::start(Some(files.root())).map_err(no_keeper)?;
    Ok(files.keep())
}

fn no_keeper(error: std::io::Error) -> String {
    format!("starting the keeper of the counters: {error}")
}

/// The hidden subcommand of the command that calls [`show`], which calls [`trial`].
pub const TRIAL: &str = "sysfs-trial";

/// Has another process do it first: some systems let a process make a user namespace and then permit
/// nothing in it, and there is no way back.
fn try_out() -> Result<(), String> {
    let trial = Command::new("/proc/self/exe")
        .arg(TRIAL)
        .stdin(Stdio::null())
        .output();
    match trial {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("trying it out: {error}")),
    }
}

/// What [`TRIAL`] does: mounts the view for this process alone, which then ends.
///
/// # Errors
/// Why mounts are not possible.
pub fn trial() -> Result<(), String> {
    mount::show().map_err(|error| error.to_string())
}
