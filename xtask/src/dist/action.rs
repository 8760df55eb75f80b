//! Runs the steps of `action.yml` as a CI runner does, with a tarball of this build.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::files::{recreate, remove};
use super::products::VERSION;
use crate::release::succeed;

/// A user's step after the action: both programs are found by the variables alone.
const STEP: &str = r#"
set -eux
urxe run -- ibv_devices | grep urxe_
unshare --net sh -euxc 'ip link set lo up; ibv_devinfo -d urxe_lo'
pkg-config --cflags --libs librdmacm
"#;

/// Runs the action's script with the tarball in `packages`, and a step after it.
pub(super) fn check(packages: &Path, workspace: &Path, target: &str) -> Result<(), String> {
    let runner = packages.join("runner");
    recreate(&runner)?;
    let sums = read(&packages.join("SHA256SUMS"))?;
    let tarball = format!("urxe-{VERSION}-{target}.tgz");
    let sum = sums
        .lines()
        .find_map(|line| line.strip_suffix(&tarball))
        .map(str::trim)
        .ok_or_else(|| format!("SHA256SUMS lacks {tarball}"))?;
    let action = |sum: &str| {
        let mut script = Command::new(workspace.join("packaging/action.sh"));
        script
            .env("VERSION", VERSION)
            .env("SHA256", sum)
            .env("URL", format!("file://{}", packages.display()))
            .env("REPLACE", "true")
            .env("RUNNER_TEMP", &runner);
        for name in ["GITHUB_PATH", "GITHUB_ENV", "GITHUB_OUTPUT"] {
            script.env(name, runner.join(name));
        }
        succeed(&mut script)
    };
    if action(&"0".repeat(sum.len())).is_ok() {
        return Err("the action accepts a tarball with another checksum".to_owned());
    }
    action(sum)?;

    let mut step = Command::new("bash");
    step.args(["-c", STEP]);
    let path = std::env::var("PATH").unwrap_or_default();
    let first = read(&runner.join("GITHUB_PATH"))?;
    step.env("PATH", format!("{}:{path}", first.trim()));
    for line in read(&runner.join("GITHUB_ENV"))?.lines() {
        let (name, value) = line.split_once('=').ok_or("a line without a value")?;
        step.env(name, value);
    }
    succeed(&mut step).map_err(|error| format!("a step after the action: {error}"))?;
    remove(&runner)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
