//! Packages for users: a tarball, Debian and RPM packages, checksums and a list of components.
//!
//! The packages are reproducible: their content depends on the commit, the toolchain and the
//! target, not on the time, the user or the directory of the source tree.

mod arm64;
mod await_server;
mod build;
mod components;
mod debian;
mod files;
mod fresh_root;
mod musl_root;
mod products;
mod reproducible;
mod rpm;
mod split;
mod tree;
mod workflow;

use std::env;
use std::path::{self, Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::debian_root;
use crate::outcome::Outcome;
use crate::release;
use crate::test_log::TestLog;
use files::{recreate, remove, write};
use products::{Products, VERSION};
use split::{Needs, PACKAGES};

/// The name of the step in `cargo xtask test`.
pub(crate) const NAME: &str = "dist";

#[derive(clap::Args)]
pub(crate) struct DistOptions {
    /// Target triple, with the oldest glibc where it matters, as in
    /// `aarch64-unknown-linux-gnu.2.28` [default: the host]. Other targets than the host need
    /// `cargo zigbuild`. May be repeated
    #[arg(long = "target", value_name = "TRIPLE")]
    targets: Vec<String>,

    /// Directory for the packages [default: `dist` in the target directory]
    #[arg(long)]
    out: Option<PathBuf>,

    /// Do not list the components, which needs `cargo sbom`
    #[arg(long)]
    no_sbom: bool,

    /// Install the packages of the host's target in a fresh root and run programs from there, as
    /// well as from tarballs for musl, and for ARM64 in an emulator
    #[arg(long)]
    check: bool,

    /// Make the packages of the commit again, in another directory, with another umask, time zone
    /// and user, and compare
    #[arg(long)]
    reproducible: bool,

    /// Run the steps of this workflow of GitHub Actions here, with the packages
    #[arg(long, value_name = "FILE")]
    workflow: Option<PathBuf>,

    /// The source tree that the workflow checks out
    #[arg(long, value_name = "DIRECTORY", requires = "workflow")]
    checkout: Option<PathBuf>,

    /// Use the packages that an earlier call or the check has made
    #[arg(long, conflicts_with_all = ["targets", "reproducible"])]
    no_build: bool,
}

/// Runs the command. Returns whether it succeeded.
pub(crate) fn run(options: &DistOptions, workspace: &Path, target: &Path) -> bool {
    match make(options, workspace, target) {
        Ok(()) => true,
        Err(problem) => {
            eprintln!("dist: {problem}");
            false
        }
    }
}

fn make(options: &DistOptions, workspace: &Path, target: &Path) -> Result<(), String> {
    // Absolute, because steps of a workflow name it in a URL.
    let out = match &options.out {
        Some(out) => path::absolute(out).map_err(|error| format!("--out: {error}"))?,
        None => target.join("dist"),
    };
    let host = build::host()?;
    if !options.no_build {
        build_packages(options, &host, workspace, target, &out)?;
    }
    if options.check {
        check(&host, workspace, target, &out)?;
    }
    run_workflow(options, &out, workspace, &host)
}

/// Installs the packages in `out` that run on this machine, and runs programs.
fn check(host: &str, workspace: &Path, target: &Path, out: &Path) -> Result<(), String> {
    let tarball = |triple: &str| out.join(format!("urxe-{VERSION}-{triple}.tgz"));
    let musl = tarball(&host.replace("-gnu", "-musl"));
    let emulated = tarball("aarch64-unknown-linux-gnu");
    let has_musl = musl.is_file();
    let has_host = tarball(host).is_file();
    let has_emulated = emulated.is_file() && !host.starts_with("aarch64");
    if has_musl {
        musl_root::check(&musl, workspace)?;
    }
    if has_emulated {
        arm64::check(&emulated, target)?;
    }
    if has_host {
        fresh_root::check(out, target, host)?;
    }
    match has_musl || has_emulated || has_host {
        true => Ok(()),
        false => Err(format!(
            "--check: {} has no package for this machine",
            out.display()
        )),
    }
}

/// Builds the packages of the options in `out`.
fn build_packages(
    options: &DistOptions,
    host: &String,
    workspace: &Path,
    target: &Path,
    out: &Path,
) -> Result<(), String> {
    if options.reproducible {
        reproducible::require_clean(workspace)?;
    }
    recreate(out)?;
    let targets = match &options.targets[..] {
        [] => std::slice::from_ref(host),
        targets => targets,
    };
    let mut files = Vec::new();
    for target_name in targets {
        let products = build::dist(target_name, workspace, target)?;
        files.extend(pack(&products, workspace, out)?);
        if !options.no_sbom {
            let epoch = epoch(workspace)?;
            files.push(components::list(&products, &epoch, workspace, target, out)?);
        }
    }
    write_checksums(out, &files)?;
    for file in &files {
        println!("{}", file.display());
    }
    if options.reproducible {
        reproducible::compare(targets, options.no_sbom, workspace, target, out)?;
    }
    Ok(())
}

/// Runs the workflow of the options, if there is one.
fn run_workflow(
    options: &DistOptions,
    packages: &Path,
    workspace: &Path,
    target: &str,
) -> Result<(), String> {
    let checkout = options.checkout.as_deref();
    match &options.workflow {
        Some(file) => workflow::run(file, checkout, packages, workspace, target),
        None => Ok(()),
    }
}

/// Makes packages of the release build and runs programs from them in a fresh root, as a step of
/// the check. Symbols are kept, because without them everything would be compiled again.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: {NAME}: packages, installed in a fresh root");
    let started = Instant::now();
    let mut log = TestLog::default();
    let problem = match debian_root::unmet_need() {
        Some(unmet_need) if env::var("CI").as_deref() != Ok("true") => {
            log.left_out.push(format!("{NAME}: {unmet_need}"));
            None
        }
        Some(unmet_need) => Some(unmet_need),
        None => try_step(workspace, target).err(),
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log,
    }
}

fn try_step(workspace: &Path, target: &Path) -> Result<(), String> {
    let out = target.join("dist-check");
    recreate(&out)?;
    release::build(&release::PRODUCTS, workspace, target)?;
    let directory = target.join("release");
    let products = Products {
        target: build::host()?,
        runnable: directory.join("urxe"),
        directory,
        compressed: false,
    };
    let files = pack(&products, workspace, &out)?;
    write_checksums(&out, &files)?;
    fresh_root::check(&out, target, &products.target)?;
    workflow::check(&out, workspace, &products.target)
}

/// Writes the packages to `out` and returns their names.
fn pack(products: &Products, workspace: &Path, out: &Path) -> Result<Vec<PathBuf>, String> {
    let epoch = epoch(workspace)?;
    let name = format!("urxe-{VERSION}-{}", products.target);
    let staging = out.join("staging");
    tree::write(products, workspace, &staging.join(&name))?;

    let tarball = PathBuf::from(format!("{name}.tgz"));
    tree::archive(
        &staging,
        &name,
        &epoch,
        products.compressed,
        &out.join(&tarball),
    )?;
    let mut files = vec![tarball];
    if !products.is_musl() {
        files.extend(split_up(products, &staging.join(&name), &epoch, out)?);
    }
    remove(&staging)?;
    Ok(files)
}

/// Makes the packages of distributions from an installed tree. Returns their names in `out`.
fn split_up(
    products: &Products,
    tree: &Path,
    epoch: &str,
    out: &Path,
) -> Result<Vec<PathBuf>, String> {
    let needs = Needs::of(&[tree.join("bin/urxe"), tree.join("lib/urxe/liburxe.so")])?;
    let mut files = Vec::new();
    for package in &PACKAGES {
        let stage = |manager: &str, name: &str| {
            let root = out.join("staging").join(manager).join(name);
            package.stage(name, tree, &root)?;
            files::set_modes(&root)?;
            Ok::<_, String>(root)
        };
        let root = stage("rpm", package.rpm_name)?;
        files.push(rpm::pack(package, products, &needs, &root, epoch, out)?);
        let root = stage("debian", package.debian_name)?;
        files.push(debian::pack(package, products, &needs, &root, epoch, out)?);
    }
    Ok(files)
}

/// Returns the time that files in packages have, in seconds since 1970: `SOURCE_DATE_EPOCH`, or
/// that of the commit.
fn epoch(workspace: &Path) -> Result<String, String> {
    if let Ok(epoch) = env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let shown = Command::new("git")
        .current_dir(workspace)
        .args(["log", "-1", "--format=%ct"])
        .output()
        .map_err(|error| format!("git: {error}"))?;
    match shown.status.success() {
        true => Ok(String::from_utf8_lossy(shown.stdout.trim_ascii()).into_owned()),
        false => Err("no commit has a time; set SOURCE_DATE_EPOCH".to_owned()),
    }
}

/// Writes `SHA256SUMS` for files in `out`.
fn write_checksums(out: &Path, files: &[PathBuf]) -> Result<(), String> {
    let sums = Command::new("sha256sum")
        .current_dir(out)
        .args(files)
        .output()
        .map_err(|error| format!("sha256sum: {error}"))?;
    if !sums.status.success() {
        return Err(String::from_utf8_lossy(&sums.stderr).into_owned());
    }
    write(&out.join("SHA256SUMS"), &sums.stdout)
}
