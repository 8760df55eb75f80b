//! Programs with scarce resources: each either reports an error or succeeds.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::pair::{limited, output_of, server, spawn};
use crate::release::succeed;

/// A port without a listener.
const UNUSED_PORT: u16 = 7299;
/// The port of a server without packet loss.
const PORT: u16 = 7298;

/// Starts programs with scarce resources, of another kind in each turn.
pub(super) fn run(turn: u64, libraries: &Path) -> Result<(), String> {
    match turn % 3 {
        0 => files(libraries),
        1 => memory(libraries),
        _ => disk(libraries),
    }
}

/// With few descriptors a client fails with an error.
fn files(libraries: &Path) -> Result<(), String> {
    let mut command = limited("--nofile=8:8", libraries);
    command.args([
        "-c",
        "-a",
        "127.0.0.1",
        "-p",
        &UNUSED_PORT.to_string(),
        "-C",
        "1",
    ]);
    let status = spawn(command)?.wait().map_err(|error| error.to_string())?;
    match status.code() {
        Some(code) if code != 0 => Ok(()),
        _ => Err(format!("with 8 descriptors a client ended with {status}")),
    }
}

/// With little memory a client fails with an error or with Rust's message for a failed allocation.
fn memory(libraries: &Path) -> Result<(), String> {
    let mut server = server(PORT, libraries, "")?;
    // From too little for a second thread to sufficient.
    let ended = (12_u64..=64).step_by(4).try_for_each(|mib| {
        let bytes = mib << 20;
        let mut command = limited(&format!("--as={bytes}:{bytes}"), libraries);
        command.args(["-c", "-V", "-a", "127.0.0.1", "-C", "5"]);
        command.args(["-p", &PORT.to_string()]);
        let mut client = spawn(command)?;
        let status = client.wait().map_err(|error| error.to_string())?;
        let output = output_of(&mut client);
        let reported = status.code().is_some() || output.contains("memory allocation of");
        match reported && !output.contains("panicked") && !output.contains("mismatch") {
            true => Ok(()),
            false => Err(format!(
                "with {mib} MiB of memory a client ended with {status}: {output}"
            )),
        }
    });
    let _ = server.kill();
    let _ = server.wait();
    ended
}

/// On a full disk a capture ends, and the captured program continues.
fn disk(libraries: &Path) -> Result<(), String> {
    let directory = libraries.join("full");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    // Below the private mount namespace.
    succeed(
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "none"])
            .arg(&directory),
    )?;
    let mut server = server(PORT, libraries, "")?;
    let mut command = limited("--memlock=0:0", libraries);
    command
        .args(["-c", "-V", "-a", "127.0.0.1", "-C", "50", "-S", "30000"])
        .args(["-p", &PORT.to_string()])
        .env("URXE_PCAP", directory.join("capture.pcapng"));
    let mut client = spawn(command)?;
    let status = client.wait().map_err(|error| error.to_string());
    let output = output_of(&mut client);
    let _ = server.kill();
    let _ = server.wait();
    succeed(Command::new("umount").arg(&directory))?;
    match status? {
        status if status.success() && !output.contains("failed") => Ok(()),
        status => Err(format!(
            "with a full disk a client ended with {status}: {output}"
        )),
    }
}
