//! `cargo xtask pyverbs`: rdma-core's own test suite over urxe, unmodified.
//!
//! [`suite`] finds it in its package; `tests/pyverbs/run.py` runs it, in a network namespace where this user
//! may make one, and [`results`] judges what it wrote.

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

/// What the tests are called in a summary.
const NAME: &str = "pyverbs";

/// How long the whole suite may take; most of it takes a second.
const LIMIT_SECONDS: &str = "900";

/// What to run, and how.
#[derive(clap::Args, Default)]
pub(crate) struct PyverbsOptions {
    /// Run only tests whose full name has this in it, or is like it where it has `*`. May be repeated.
    #[arg(short = 'k', value_name = "PATTERN")]
    pattern: Vec<String>,

    /// Build urxe without optimization, which is quicker.
    #[arg(long)]
    dev: bool,

    /// How `urxe run` shows its devices in sysfs: what it takes as `--sysfs`.
    #[arg(long, value_name = "WHEN")]
    sysfs: Option<String>,

    /// Show what the tests and urxe print, instead of keeping it in a file.
    #[arg(long)]
    show_output: bool,
}

/// Why the suite could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// There is no pyverbs.
    #[error(
        "no Python here has the module pyverbs: apt-get install python3-pyverbs (cargo xtask test \
         does so, as root)"
    )]
    NoPyverbs,
    /// There are no tests.
    #[error(
        "rdma-core's tests are in none of {0}; they come with the package python3-pyverbs, unless \
         it was installed without documentation"
    )]
    NoSuite(String),
    /// gzip failed.
    #[error("{0} could not be decompressed; gzip's own words are above")]
    NotUnpacked(PathBuf),
    /// cargo failed.
    #[error("urxe could not be built; cargo's own words are above")]
    NotBuilt,
    /// A file, or a program, is not as it should be.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl Error {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::File { path, source }
    }
}

/// Runs the command; whether everything is as it should be.
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

/// Runs the whole suite as a step of the check.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: pyverbs: rdma-core's test suite");
    let started = Instant::now();
    let (log, problem) = match try_run(&PyverbsOptions::default(), workspace, target) {
        Ok((results, problem)) => (results.log(), problem),
        // As for other tests whose needs are not met: left out here, failed where all must run.
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

/// Runs what the options choose, prints what came of it, and returns that with what is wrong.
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
        println!("pyverbs: the tests' own output is in {}", output.display());
    }
    let floor = if options.pattern.is_empty() { FLOOR } else { 0 };
    let problem = results.failures().or_else(|| {
        (!status.success())
            .then(|| format!("the suite ended with {status}; its output tells where"))
            .or_else(|| results.too_few(floor))
    });
    Ok((results, problem))
}

/// Builds urxe; returns the command, which has beside it the library, and what it preloads for sysfs.
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

/// The words that run a command in a network namespace with interfaces of its own: as root, as root of
/// a user namespace, or none, where neither is allowed.
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
        println!("pyverbs: no network namespace can be made here; using this host's interfaces");
    }
    found.unwrap_or_default()
}

/// A command that begins with these words and ends after a time.
fn limited(words: &[String]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", LIMIT_SECONDS])
        .args(words)
        .stdin(Stdio::null());
    command
}

/// Ends processes that tests started and left.
fn end_group(leader: u32) {
    // There may be none any more.
    let _ = Command::new("kill")
        .args(["-s", "KILL", "--", &format!("-{leader}")])
        .stderr(Stdio::null())
        .status();
}
