//! Assembles the directory that the guest mounts: script, agent, urxe, and plans.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{AtPath, Error, Result, not_started, run, words};
use super::plan::{Group, Kind};
use crate::release;

/// Creates the job that runs `groups` in `directory`.
pub(crate) fn make(
    directory: &Path,
    workspace: &Path,
    target: &Path,
    guest_root: &Path,
    groups: &[Group],
) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).at(directory)?;
    }
    let plans = directory.join("plans");
    fs::create_dir_all(&plans).at(&plans)?;
    let libraries = guest_root.join("usr/lib/x86_64-linux-gnu");
    let [verbs, cm] = ["libibverbs.so.1", "librdmacm.so.1"].map(|name| libraries.join(name));
    let sources = workspace.join("tests/rxe");
    let include = workspace.join("include");
    for program in ["agent", "connection", "grant"] {
        compile(&sources.join(program), &directory.join(program), |gcc| {
            // The guest's C library may be newer than this machine's, and its libraries may depend
            // on it.
            gcc.arg("-I")
                .arg(&include)
                .args(["-Wl,--allow-shlib-undefined", "-Wl,--as-needed"])
                .args([&verbs, &cm])
        })?;
    }
    compile(&sources.join("udp"), &directory.join("udp"), |gcc| gcc)?;
    install_urxe(&directory.join("urxe"), workspace, target)?;
    for script in ["hosts.sh", "loss.sh", "run.sh"] {
        let from = workspace.join("tests/rxe").join(script);
        copy(&from, &directory.join(script))?;
    }
    for (name, script) in [
        ("run", "exec bash /job/run.sh\n"),
        ("shell", ". /job/hosts.sh\nhosts\n"),
    ] {
        let file = directory.join(name);
        fs::write(&file, script).at(&file)?;
    }

    let mut list = String::new();
    for group in groups {
        let kind = match group.kind {
            Kind::Agents => "agents",
            Kind::Programs => "programs",
        };
        let [a, b] = group.sides;
        let _ = writeln!(
            list,
            "{} {kind} {} {a} {b} {} {}",
            group.name, group.lanes, group.ip, group.netem
        );
        let plan: String = group
            .cells
            .iter()
            .map(|cell| format!("{}\n", cell.line))
            .collect();
        let file = plans.join(group.name);
        fs::write(&file, plan).at(&file)?;
    }
    let file = directory.join("groups");
    fs::write(&file, list).at(&file)
}

/// Creates a job in `directory` that runs a script with urxe alone.
pub(crate) fn make_script(
    directory: &Path,
    workspace: &Path,
    target: &Path,
    script: &str,
) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).at(directory)?;
    }
    install_urxe(&directory.join("urxe"), workspace, target)?;
    let file = directory.join("run");
    fs::write(&file, script).at(&file)
}

/// Compiles the C files of a directory into one program; `more` adds arguments.
fn compile(
    sources: &Path,
    program: &Path,
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<()> {
    let mut files: Vec<PathBuf> = fs::read_dir(sources)
        .at(sources)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(program)
        .args(files);
    run(more(&mut gcc), "gcc").map(drop)
}

/// Builds urxe in the release profile and links the library under the sonames that programs load.
fn install_urxe(directory: &Path, workspace: &Path, target: &Path) -> Result<()> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--release", "--quiet"])
        .args(
            release::PRODUCTS
                .iter()
                .flat_map(|package| ["--package", package]),
        )
        .arg("--target-dir")
        .arg(target);
    let status = cargo
        .status()
        .map_err(|error| not_started(&cargo, "cargo", error))?;
    if !status.success() {
        return Err(Error::Failed {
            command: words(&cargo),
            status: status.to_string(),
            output: String::new(),
        });
    }
    fs::create_dir_all(directory).at(directory)?;
    for file in ["liburxe.so", "urxe"] {
        copy(&target.join("release").join(file), &directory.join(file))?;
    }
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let link = directory.join(name);
        symlink("liburxe.so", &link).at(&link)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).at(from).map(drop)
}
