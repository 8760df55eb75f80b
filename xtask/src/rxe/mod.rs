//! `cargo xtask rxe`: urxe against the Linux kernel's rxe, in a guest on this machine.

mod archive;
mod cpio;
mod error;
mod guest;

use std::fs;
use std::path::Path;

use error::{AtPath, Result};
use guest::{Guest, Kernel};

/// What to run.
#[derive(clap::Args)]
pub(crate) struct RxeOptions {
    /// The kernel, and the release of Debian around it.
    #[arg(long, value_enum, default_value = "bookworm")]
    kernel: Kernel,

    /// Give a shell in the guest instead of running anything.
    #[arg(long)]
    shell: bool,
}

/// Runs the command; whether everything that ran succeeded.
pub(crate) fn run(options: &RxeOptions, target: &Path) -> bool {
    match try_run(options, target) {
        Ok(succeeded) => succeeded,
        Err(error) => {
            eprintln!("rxe: {error}");
            false
        }
    }
}

fn try_run(options: &RxeOptions, target: &Path) -> Result<bool> {
    let directory = target.join("rxe");
    let guest = Guest::prepare(&directory, options.kernel)?;
    let job = directory.join("job");
    fs::create_dir_all(&job).at(&job)?;
    if options.shell {
        guest.shell(&job)?;
        return Ok(true);
    }
    let status = guest.run(&job, &mut |line| println!("{line}"))?;
    Ok(status == 0)
}
