//! Makes the packages again from a clone of the repository and compares the checksums.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::files::remove;
use crate::release::succeed;

/// The options of `unshare` for a process that has another user's identity.
const OTHER_USER: [&str; 3] = ["--user", "--map-user=1000", "--map-group=1000"];

/// Fails if files differ from the commit, because the clone has those of the commit.
pub(super) fn require_clean(workspace: &Path) -> Result<(), String> {
    let shown = Command::new("git")
        .current_dir(workspace)
        .args(["status", "--porcelain", "--untracked-files=no"])
        .output()
        .map_err(|error| format!("git: {error}"))?;
    match shown.status.success() && shown.stdout.is_empty() {
        true => Ok(()),
        false => Err("--reproducible compares builds of a commit; commit the changes".to_owned()),
    }
}

/// Makes the packages of the commit in a clone, and compares them with those in `out`.
pub(super) fn compare(
    targets: &[String],
    no_sbom: bool,
    workspace: &Path,
    target: &Path,
    out: &Path,
) -> Result<(), String> {
    let began = Instant::now();
    let directory = env::temp_dir().join(format!("urxe-again-{}", std::process::id()));
    println!("dist: again in {}", directory.display());
    let again = directory.join("packages");
    let result = make_again(targets, no_sbom, workspace, target, &directory).and_then(|()| {
        Ok(differences(
            &read(&out.join(SUMS))?,
            &read(&again.join(SUMS))?,
        ))
    });
    let differing = result.inspect_err(|_| {
        // In the directory for temporary files, and the failure is already reported.
        let _ = remove(&directory);
    })?;
    if !differing.is_empty() {
        return Err(format!(
            "the second build differs: {}; its packages are in {}",
            differing.join(", "),
            again.display()
        ));
    }
    remove(&directory)?;
    println!("dist: identical, in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// The file of checksums.
const SUMS: &str = "SHA256SUMS";

/// Makes the packages in a clone, both in `directory`.
fn make_again(
    targets: &[String],
    no_sbom: bool,
    workspace: &Path,
    target: &Path,
    directory: &Path,
) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", directory.display());
    // Of another length than the workspace.
    let clone = directory.join("a-directory-with-another-name/urxe");
    let [home, cargo_home] = ["home", "cargo-home"].map(|name| directory.join(name));
    for made in [&home, &cargo_home] {
        fs::create_dir_all(made).map_err(failed)?;
    }
    succeed(
        Command::new("git")
            .args(["clone", "--quiet"])
            .args([workspace, &clone]),
    )?;
    fs::create_dir(clone.join("target")).map_err(failed)?;

    // Sources of crates and tools come from where they are.
    let usual = PathBuf::from(env::var_os("HOME").unwrap_or_default());
    let directory_of = |name: &str, below_home: &str| match env::var_os(name) {
        Some(path) => PathBuf::from(path),
        None => usual.join(below_home),
    };
    let registry = directory_of("CARGO_HOME", ".cargo").join("registry");
    symlink(registry, cargo_home.join("registry")).map_err(failed)?;
    let tools = target.join("tools");
    symlink(tools, clone.join("target/tools")).map_err(failed)?;

    let mut command = match permits_other_user() {
        true => {
            let mut unshare = Command::new("unshare");
            unshare.args(OTHER_USER);
            unshare
        }
        false => {
            println!(
                "dist: user namespaces are not permitted, so the second build has the same user"
            );
            Command::new("env")
        }
    };
    command
        .args(["sh", "-c", "umask 077 && exec \"$@\"", "sh"])
        .args(["cargo", "xtask", "dist", "--out"])
        .arg(directory.join("packages"))
        .args(targets.iter().map(|target| format!("--target={target}")))
        .args(no_sbom.then_some("--no-sbom"))
        .current_dir(&clone)
        .env("RUSTUP_HOME", directory_of("RUSTUP_HOME", ".rustup"))
        .env("CARGO_HOME", &cargo_home)
        .env("HOME", &home)
        .env("TZ", "Pacific/Kiritimati")
        .env("LC_ALL", "C.UTF-8")
        .env("USER", "another")
        .env("LOGNAME", "another")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    succeed(&mut command)
}

fn permits_other_user() -> bool {
    Command::new("unshare")
        .args(OTHER_USER)
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the files of the second list whose lines the first one lacks, or else those that only
/// the first one has.
fn differences(first: &str, second: &str) -> Vec<String> {
    let lacking = |lines: &str, others: &str| -> Vec<String> {
        lines
            .lines()
            .filter(|line| !others.lines().any(|other| other == *line))
            .map(|line| line.split_whitespace().last().unwrap_or(line).to_owned())
            .collect()
    };
    match lacking(second, first) {
        differing if differing.is_empty() => lacking(first, second),
        differing => differing,
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_is_named() {
        let first = "aa  urxe.tgz\nbb  urxe.deb\n";
        assert!(differences(first, first).is_empty());
        let second = "aa  urxe.tgz\ncc  urxe.deb\n";
        assert_eq!(differences(first, second), ["urxe.deb"]);
        assert_eq!(differences(first, "aa  urxe.tgz\n"), ["urxe.deb"]);
    }
}
