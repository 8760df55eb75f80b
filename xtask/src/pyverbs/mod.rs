//! `cargo xtask pyverbs`: rdma-core's unmodified test suite over urxe.
//!
//! [`suite`] unpacks the tests from the package. `tests/pyverbs/run.py` runs them, in a network
//! namespace where possible. [`results`] evaluates the results.

mod huge_pages;
mod results;
mod suite;

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use huge_pages::HugePages;
use results::{FLOOR, Results};

use crate::outcome::Outcome;
use crate::release;
use crate::test_log::TestLog;

/// The name of the tests in a summary.
const NAME: &str = "pyverbs";

/// The time limit of the suite. Most tests take a second.
const LIMIT_SECONDS: &str = "900";

/// The options of the command.
#[derive(clap::Args, Default)]
pub(crate) struct PyverbsOptions {
    /// Run only tests whose full name contains PATTERN, or matches it where it has `*`; may be
    /// repeated
    #[arg(short = 'k', value_name = "PATTERN")]
    pattern: Vec<String>,

    /// Build urxe without optimization, which is faster
    #[arg(long)]
    dev: bool,

    /// Value of `--sysfs` for `urxe run`
    #[arg(long, value_name = "WHEN")]
    sysfs: Option<String>,

    /// Show the output of the tests and of urxe instead of writing it to a file
    #[arg(long)]
    show_output: bool,
}

/// An error that prevents running the suite.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The module pyverbs is missing.
    #[error(
        "the Python module pyverbs is missing: apt-get install python3-pyverbs (cargo xtask test \
         does so, as root)"
    )]
    NoPyverbs,
    /// The tests are missing.
    #[error(
        "rdma-core's tests are not in {0}; they are in the package python3-pyverbs, unless \
         it was installed without documentation"
    )]
    NoSuite(String),
    /// gzip failed.
    #[error("cannot decompress {0}; see the output of gzip above")]
    NotUnpacked(PathBuf),
    /// cargo failed.
    #[error("cannot build urxe; see the output of cargo above")]
    NotBuilt,
    /// A file or program cannot be used.
    #[error("{path}: {source}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::File { path, source }
    }
}

/// Runs the command. Returns whether the results are as required.
pub(crate) fn run(options: &PyverbsOptions, workspace: &Path, target: &Path) -> bool {
    match try_run(options, workspace, target) {
        Ok((_, None)) => true,
        Ok((_, Some(problem))) => {
            println!("pyverbs: {problem}");
            false
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
    let (log, problem) = match try_run(&PyverbsOptions::default(), workspace, target) {
        Ok((results, problem)) => (results.log(), problem),
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

/// Runs the selected tests, prints the results, and returns them with the problems.
fn try_run(
    options: &PyverbsOptions,
    workspace: &Path,
    target: &Path,
) -> Result<(Results, Option<String>), Error> {
    let python = suite::python().ok_or(Error::NoPyverbs)?;
    let directory = target.join(NAME);
    suite::unpack(&directory)?;
    let urxe = build(options, workspace, target)?;

    let written = directory.join("results.txt");
    let output = directory.join("output.txt");
    fs::write(&written, "").map_err(Error::at(&written))?;
    let mut command = limited(&in_own_network(workspace));
    command
        .arg(&urxe)
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
    let huge_pages = HugePages::reserve();
    let mut child = command.spawn().map_err(Error::at(Path::new("timeout")))?;
    let status = child.wait().map_err(Error::at(&urxe))?;
    end_group(child.id());
    drop(huge_pages);

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
