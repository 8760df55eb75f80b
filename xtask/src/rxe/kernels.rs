//! `--kernels`: urxe alone on the kernels of Debian's releases and their backports, from the oldest
//! to the newest.

use std::path::Path;

use clap::ValueEnum;

use super::error::Result;
use super::guest::{Guest, Kernel};
use super::job;

/// The script of the guest.
const SCRIPT: &str = include_str!("../../../tests/rxe/kernel.sh");

/// The start of the lines that are results.
const MARK: &str = "kernel: ";

/// Runs the script on each kernel. Returns whether all succeeded.
pub(crate) fn run(workspace: &Path, target: &Path) -> Result<bool> {
    let mut rows = Vec::new();
    let mut all_succeeded = true;
    for &kernel in Kernel::value_variants() {
        let directory = target.join("rxe");
        let guest = Guest::prepare(&directory, kernel)?;
        println!("rxe: urxe alone on Linux {}", guest.release);
        let job = directory.join(kernel.name()).join("kernel");
        job::make_script(&job, workspace, target, SCRIPT)?;
        let mut lines = Vec::new();
        let result = guest.run(&job, &mut |line| {
            println!("{line}");
            if let Some(result) = line.strip_prefix(MARK) {
                lines.push(result.to_owned());
            }
        });
        all_succeeded &= result.is_ok();
        let verdict = match result {
            Ok(()) => lines.join("; "),
            Err(error) => format!("failed: {error}"),
        };
        rows.push(format!("{:<28} {verdict}", guest.release));
    }
    println!("\n{}", rows.join("\n"));
    Ok(all_succeeded)
}
