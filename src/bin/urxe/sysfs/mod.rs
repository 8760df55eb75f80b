//! The devices as programs and scripts look for them in `/sys/class/infiniband`.
//!
//! - `tree`: what is to be seen of a device.
//! - `mount`: puts it where it is looked for, for one program and what it starts.
//! - `preload`: where that is forbidden, has the program look elsewhere.
//! - `keeper`: a process that keeps the counters true.

use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};

pub mod keeper;
mod mount;
mod preload;
mod tree;

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

/// A variable for the program's environment.
pub type Variable = (&'static str, OsString);

/// Shows the devices to this process, or what it becomes with these variables, and what that starts.
///
/// # Errors
/// When it was to be done in any case and cannot be.
pub fn show(view: View) -> Result<Vec<Variable>, String> {
    let shown = match view {
        View::No => return Ok(Vec::new()),
        View::Preload => show_preloaded(),
        View::Auto | View::Yes => show_mounted().or_else(|mounts| {
            tracing::info!("no mounts for the devices: {mounts}");
            show_preloaded().map_err(|error| format!("{mounts}; nor by preloading: {error}"))
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

fn show_preloaded() -> Result<Vec<Variable>, String> {
    let files = preload::Files::write().map_err(|error| error.to_string())?;
    // The files are the keeper's to remove, once there is one.
    keeper::start(Some(files.root())).map_err(no_keeper)?;
    Ok(files.keep())
}

fn no_keeper(error: std::io::Error) -> String {
    format!("starting the keeper of the counters: {error}")
}

/// The hidden subcommand that tries it out.
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

/// The subcommand: changes this process alone, which ends.
pub fn trial() -> ExitCode {
    match mount::show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
