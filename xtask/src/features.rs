//! A step of the check: the crate `urxe` compiles without warnings with none of its features, and
//! with each of them alone.
//!
//! The other steps enable all features, so they find neither an import that a feature leaves unused
//! nor code that needs a feature which does not enable it. The packages below `urxe` have at most
//! the feature `capture`, which `urxe` passes on.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;

use crate::metadata;
use crate::outcome::Outcome;
use crate::test_log::TestLog;

/// The step of `cargo xtask test`.
pub(crate) const NAME: &str = "features";

/// The package whose features programs select.
const PACKAGE: &str = "urxe";

#[derive(Deserialize)]
struct Package {
    name: String,
    features: BTreeMap<String, Vec<String>>,
}

/// Runs the step.
pub(crate) fn step(workspace: &Path) -> Outcome {
    println!("\nxtask: {NAME}: {PACKAGE} with none of its features, and with each alone");
    let started = Instant::now();
    Outcome {
        step: NAME,
        problem: check(workspace).err(),
        took: started.elapsed(),
        log: TestLog::default(),
    }
}

fn check(workspace: &Path) -> Result<(), String> {
    let packages: Vec<Package> = metadata::packages(workspace, "--no-deps")?;
    let package = packages
        .into_iter()
        .find(|package| package.name == PACKAGE)
        .ok_or_else(|| format!("there is no package {PACKAGE}"))?;
    let failing: Vec<String> = selections(&package)
        .into_iter()
        .filter(|features| !compiles(workspace, features))
        .collect();
    match failing.is_empty() {
        true => Ok(()),
        false => Err(format!("fails with the features: {}", failing.join("; "))),
    }
}

/// Returns the selections of features: none, each alone.
fn selections(package: &Package) -> Vec<String> {
    let named = package.features.keys().filter(|name| *name != "default");
    [String::new()].into_iter().chain(named.cloned()).collect()
}

/// Returns whether clippy passes. It compiles the dependencies as the step `clippy` does, so that
/// the two share their results.
fn compiles(workspace: &Path, features: &str) -> bool {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(workspace)
        .args(["clippy", "--quiet", "--locked", "--package", PACKAGE])
        .args(["--no-default-features", "--features", features])
        .args(["--", "-D", "warnings"])
        .status();
    match status {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("{NAME}: cannot start cargo: {error}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_selected_alone_and_none() {
        let names = ["default", "net", "tokio"];
        let package = Package {
            name: PACKAGE.into(),
            features: names.map(|name| (name.into(), Vec::new())).into(),
        };
        assert_eq!(selections(&package), ["", "net", "tokio"]);
    }
}
