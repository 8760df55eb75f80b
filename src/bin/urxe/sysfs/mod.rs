//! The devices as programs and scripts look for them in `/sys/class/infiniband`.
//!
//! - `tree`: what is to be seen of a device.
//! - `mount`: puts it where it is looked for, for one program and what it starts.
//! - `keeper`: a process that keeps the counters true.

use std::process::{Command, ExitCode, Stdio};

pub mod keeper;
mod mount;
mod tree;

/// Whether to show the devices in sysfs.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Where it is possible
    Auto,
    /// In any case: fail where it is not possible
    Yes,
    /// Not
    No,
}

/// Shows the devices to this process and what it starts, from now on.
///
/// # Errors
/// When it was to be done in any case and cannot be.
pub fn show(view: View) -> Result<(), String> {
    if view == View::No {
        return Ok(());
    }
    let shown = try_out().and_then(|()| mount::show().map_err(|error| error.to_string()));
    let shown = shown.and_then(|()| {
        let kept = keeper::start();
        kept.map_err(|error| format!("starting the keeper of the counters: {error}"))
    });
    match (shown, view) {
        (Err(error), View::Yes) => Err(format!("the devices cannot be shown in /sys: {error}")),
        (Err(error), _) => {
            tracing::info!("the devices are not to be seen in /sys: {error}");
            Ok(())
        }
        (Ok(()), _) => Ok(()),
    }
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
