//! The packages of the workspace, from `cargo metadata`.

use std::env;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The relevant part of cargo's metadata.
#[derive(Deserialize)]
struct Metadata<P> {
    packages: Vec<P>,
}

/// Returns the packages that `cargo metadata` lists with this option. `P` has the fields that the
/// caller needs.
///
/// # Errors
/// The message of cargo.
pub(crate) fn packages<P: DeserializeOwned>(
    workspace: &Path,
    option: &str,
) -> Result<Vec<P>, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace)
        .args(["metadata", option, "--format-version", "1"])
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Metadata<P> = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(metadata.packages)
}
