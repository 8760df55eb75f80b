//! Each package as it would be published: `cargo publish --dry-run`.
//!
//! cargo builds each package against the packed sources of the others. It unpacks these below its
//! home directory, named by the path of the workspace and the version, and keeps what is there
//! already. Sources of an earlier commit at the same path would thus be built instead of the
//! current ones. The step gives cargo a home directory whose unpacked sources are its own; the
//! index and the downloaded archives are shared with the real one.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::outcome::Outcome;
use crate::test_log::TestLog;

pub(crate) const NAME: &str = "package";

/// Runs `cargo publish --dry-run` for the whole workspace.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: {NAME}: cargo publish --dry-run");
    let started = Instant::now();
    let problem = match run(workspace, target) {
        Ok(problem) => problem,
        Err(error) => Some(format!("cannot run cargo: {error}")),
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log: TestLog::default(),
    }
}

fn run(workspace: &Path, target: &Path) -> io::Result<Option<String>> {
    let home = target.join("package-home");
    prepare(&home, &cargo_home()?)?;
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace)
        .env("CARGO_HOME", &home)
        .args(["publish", "--dry-run", "--workspace"])
        .args(["--locked", "--allow-dirty"])
        .status()?;
    Ok((!status.success()).then(|| status.to_string()))
}

fn cargo_home() -> io::Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    match env::var_os("HOME") {
        Some(home) => Ok(Path::new(&home).join(".cargo")),
        None => Err(io::Error::other("neither CARGO_HOME nor HOME is set")),
    }
}

/// Makes `home` anew: links to all that is in `real`, except for the unpacked sources.
fn prepare(home: &Path, real: &Path) -> io::Result<()> {
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    link_entries(real, home, "registry")?;
    link_entries(&real.join("registry"), &home.join("registry"), "src")
}

/// Links each entry of `from` into the new directory `to`, except for the one named `left_out`.
fn link_entries(from: &Path, to: &Path, left_out: &str) -> io::Result<()> {
    fs::create_dir_all(to)?;
    // A machine that has not downloaded anything yet lacks the directory.
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() != left_out {
            symlink(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_sources_are_not_shared_between_runs() {
        let root = env::temp_dir().join(format!("urxe-publish-{}", std::process::id()));
        let (real, home) = (root.join("real"), root.join("home"));
        fs::create_dir_all(real.join("registry/src/-0/urxe-net-0.1.0")).unwrap();
        fs::create_dir_all(real.join("registry/index")).unwrap();
        fs::write(real.join("config.toml"), "").unwrap();

        prepare(&home, &real).unwrap();
        fs::create_dir_all(home.join("registry/src/-0/urxe-net-0.1.0")).unwrap();
        prepare(&home, &real).unwrap();

        assert!(home.join("config.toml").exists());
        assert!(home.join("registry/index").exists());
        assert!(!home.join("registry/src").exists());
        assert!(real.join("registry/src/-0/urxe-net-0.1.0").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
