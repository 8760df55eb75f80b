//! `cargo xtask pyverbs`: rdma-core's unmodified test suite over urxe.
//!
//! [`suite`] unpacks the tests from the package. `tests/pyverbs/run.py` runs them, in a network
//! namespace where possible. [`results`] evaluates the results. [`newest`] does the same for
//! Debian's newest release.

mod error;
mod huge_pages;
mod newest;
mod options;
mod results;
mod suite;

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use error::Error;
use huge_pages::HugePages;
use options::NAME;
use results::{FLOOR, Results};

use crate::debian_root;
use crate::outcome::Outcome;
use crate::release;
use crate::test_log::TestLog;

pub(crate) use options::PyverbsOptions;

/// The time limit of the suite. Most tests take a second.
const LIMIT_SECONDS: &str = "900";

/// Runs the command. Returns whether the results are as required.
pub(crate) fn run(options: &PyverbsOptions, workspace: &Path, target: &Path) -> bool {
    match try_all(options, workspace, target) {
        Ok((log, problem)) => {
            for left_out in log.left_out {
                println!("{left_out}");
            }
            if let Some(problem) = &problem {
                println!("pyverbs: {problem}");
            }
            problem.is_none()
        }
        Err(error) => {
            eprintln!("pyverbs: {error}");
            false
        }
    }
}

/// Runs the suite as a step of the check.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: pyverbs: rdma-core's test suite");
    let started = Instant::now();
    let (log, problem) = match try_all(&PyverbsOptions::default(), workspace, target) {
        Ok(result) => result,
        // Without the needed packages the step is skipped, or fails where all tests must run.
        Err(error @ (Error::NoPyverbs | Error::NoSuite(_)))
            if env::var("CI").as_deref() != Ok("true") =>
        {
            let mut log = TestLog::default();
            log.left_out.push(format!("{NAME}: {error}"));
            (log, None)
        }
        Err(error) => (TestLog::default(), Some(error.to_string())),
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log,
    }
}

/// Runs the selected tests of the installed and of the newest release. Returns the totals with the
/// first problem.
fn try_all(
    options: &PyverbsOptions,
    workspace: &Path,
    target: &Path,
) -> Result<(TestLog, Option<String>), Error> {
    suite::python().ok_or(Error::NoPyverbs)?;
    let urxe = build(options, workspace, target)?;
    let _huge_pages = HugePages::reserve();
    let (results, mut problem) = run_installed(options, workspace, target, &urxe)?;
    let mut log = results.log();
    if options.installed {
        return Ok((log, problem));
    }
    if let Some(unmet_need) = debian_root::unmet_need()
        && env::var("CI").as_deref() != Ok("true")
    {
        let release = newest::RELEASE;
        log.left_out
            .push(format!("{NAME} of {release}: {unmet_need}"));
        return Ok((log, problem));
    }
    let (results, its_problem) = newest::run(options, workspace, target, &urxe)?;
    let its_log = results.log();
    log.passed += its_log.passed;
    log.failed += its_log.failed;
    problem = problem.or(its_problem);
    Ok((log, problem))
}

/// Runs the selected tests of the installed release, prints the results, and returns them with the
/// problems.
fn run_installed(
    options: &PyverbsOptions,
    workspace: &Path,
    target: &Path,
    urxe: &Path,
) -> Result<(Results, Option<String>), Error> {
    let python = suite::python().ok_or(Error::NoPyverbs)?;
    let directory = target.join(NAME);
    suite::unpack(&directory)?;

    let written = directory.join("results.txt");
    let output = directory.join("output.txt");
    fs::write(&written, "").map_err(Error::at(&written))?;
    let mut command = limited(&in_own_network(workspace));
    command
        .arg(urxe)
        .arg("run")
        .args(
            options
                .sysfs
                .iter()
                .flat_map(|when| ["--sysfs", when.as_str()]),
        )
        .args(["--", python])
        .arg(workspace.join("tests/pyverbs/run.py"))
        .args([&directory, &written])
        .current_dir(&directory)
        .process_group(0);
    for pattern in &options.pattern {
        command.args(["-k", pattern]);
    }
    if !options.show_output {
        let file = File::create(&output).map_err(Error::at(&output))?;
        let copy = file.try_clone().map_err(Error::at(&output))?;
        command.stdout(file).stderr(copy);
    }
    let mut child = command.spawn().map_err(Error::at(Path::new("timeout")))?;
    let status = child.wait().map_err(Error::at(urxe))?;
    end_group(child.id());

    let text = fs::read_to_string(&written).map_err(Error::at(&written))?;
    let results = Results::parse(&text);
    results.print();
    if !options.show_output {
        println!(
            "pyverbs: the output of the tests is in {}",
            output.display()
        );
    }
    let floor = if options.pattern.is_empty() { FLOOR } else { 0 };
    let problem = results.failures().or_else(|| {
        (!status.success())
            .then(|| format!("the suite ended with {status}; see its output"))
            .or_else(|| results.too_few(floor))
    });
    Ok((results, problem))
}

/// Builds urxe and returns the path of the command, with the shared objects beside it.
fn build(options: &PyverbsOptions, workspace: &Path, target: &Path) -> Result<PathBuf, Error> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--quiet"])
        .args(
            release::PRODUCTS
                .iter()
                .flat_map(|package| ["--package", package]),
        )
        .arg("--target-dir")
        .arg(target);
    let profile = if options.dev { "debug" } else { "release" };
    if !options.dev {
        cargo.arg("--release");
    }
    let status = cargo.status().map_err(Error::at(Path::new("cargo")))?;
    if status.success() {
        Ok(target.join(profile).join("urxe"))
    } else {
        Err(Error::NotBuilt)
    }
}

/// Returns a command prefix for a network namespace with interfaces of its own: as root, or as root
/// of a user namespace. Empty where neither is allowed.
fn in_own_network(workspace: &Path) -> Vec<String> {
    let script = workspace.join("tests/pyverbs/network.sh");
    let script = script.display().to_string();
    let found = ["--net", "--map-root-user --net"]
        .into_iter()
        .find_map(|flags| {
            let words = format!("unshare {flags} sh");
            let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            words.push(script.clone());
            let works = Command::new(&words[0])
                .args(&words[1..])
                .arg("true")
                .stdin(Stdio::null())
                .output()
                .is_ok_and(|output| output.status.success());
            works.then_some(words)
        });
    if found.is_none() {
        println!("pyverbs: cannot create a network namespace; using this host's interfaces");
    }
    found.unwrap_or_default()
}

/// Returns a command with this prefix and a time limit.
fn limited(words: &[String]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", LIMIT_SECONDS])
        .args(words)
        .stdin(Stdio::null());
    command
}

/// Kills processes that tests have left behind.
fn end_group(leader: u32) {
    // Fails if there are none.
    let _ = Command::new("kill")
        .args(["-s", "KILL", "--", &format!("-{leader}")])
        .stderr(Stdio::null())
        .status();
}
