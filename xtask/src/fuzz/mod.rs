//! `cargo xtask fuzz`: the libFuzzer targets in `fuzz/`, built with the stable compiler.
//!
//! cargo-fuzz needs a nightly compiler only for AddressSanitizer. The edge counters and comparison
//! tracing of libFuzzer are LLVM options that any rustc passes on. The stable toolchain contains
//! the runtime of AddressSanitizer, and `RUSTC_BOOTSTRAP` enables its option. So neither a nightly
//! toolchain nor cargo-fuzz is needed, but a C++ compiler is. cargo-fuzz works as well.
//!
//! The corpus is kept in `fuzz/corpus` of the target directory. The module `seeds` adds the
//! initial inputs.

mod error;
mod output;
mod seeds;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::outcome::Outcome;
use crate::test_log::TestLog;
use crate::toolchain::{self, UNSTABLE};
use error::{Error, at};
use output::{Finding, Progress};

/// The name of the step in `cargo xtask test`.
pub(crate) const NAME: &str = "fuzz";

/// The seconds for each target in `cargo xtask test`.
const SHORT: u64 = 8;

/// The interval of progress lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The longest input in bytes.
const MAX_LEN: usize = 4096;
/// The time limit of an input in seconds.
const TIMEOUT: u64 = 10;
/// The memory limit in MiB.
const MEMORY: u64 = 2048;

/// The compiler flags. The first five are what libFuzzer needs, as in cargo-fuzz. Debug assertions
/// and overflow checks are enabled as well.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
    "-Zsanitizer=address",
];

/// The options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct FuzzOptions {
    /// Target to run: a file in `fuzz/fuzz_targets` [default: all, one after the other]
    target: Option<String>,

    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    time: u64,

    /// Random seed; 0 selects a new one each time
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Runs the command. Returns whether no target failed.
pub(crate) fn run(options: &FuzzOptions, workspace: &Path, target: &Path) -> bool {
    match try_run(options, workspace, target) {
        Ok(findings) => findings.iter().all(|finding| finding.problem.is_none()),
        Err(error) => {
            eprintln!("xtask: fuzz: {error}");
            false
        }
    }
}

/// Runs the step of `cargo xtask test`.
pub(crate) fn step(workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: fuzz: each target for {SHORT} seconds");
    let started = Instant::now();
    let options = FuzzOptions {
        target: None,
        time: SHORT,
        seed: 0,
    };
    let mut log = TestLog::default();
    let problem = match try_run(&options, workspace, target) {
        Ok(findings) => {
            let failed = findings.iter().filter(|finding| finding.problem.is_some());
            log.failed = failed.count();
            log.passed = findings.len() - log.failed;
            (log.failed > 0).then(|| format!("{} targets failed", log.failed))
        }
        Err(error) => Some(error.to_string()),
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log,
    }
}

fn try_run(options: &FuzzOptions, workspace: &Path, target: &Path) -> Result<Vec<Finding>, Error> {
    let known = targets(workspace)?;
    let chosen: Vec<&String> = match &options.target {
        None => known.iter().collect(),
        Some(name) => match known.iter().find(|target| *target == name) {
            Some(target) => vec![target],
            None => {
                let name = name.clone();
                return Err(Error::NoTarget { name, known });
            }
        },
    };
    let home = target.join("fuzz");
    let programs = build(workspace, &home)?;
    let mut findings = Vec::new();
    for name in chosen {
        let finding = run_target(name, options, workspace, &home, &programs)?;
        findings.push(finding);
    }
    output::print_table(&findings);
    Ok(findings)
}

/// Returns the names of the targets in alphabetical order.
fn targets(workspace: &Path) -> Result<Vec<String>, Error> {
    let directory = workspace.join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&directory).map_err(at(&directory))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Builds all targets and returns their directory.
fn build(workspace: &Path, home: &Path) -> Result<PathBuf, Error> {
    let triple = toolchain::triple().ok_or(Error::NoTriple)?;
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(workspace)
        .args(["build", "--release", "--locked", "--bins"])
        .args(["--package", "urxe-fuzz", "--target", &triple])
        .arg("--target-dir")
        .arg(home)
        // Sanitizers need a -Z option. With a named target, procedural macros are built without it.
        .env(UNSTABLE.0, UNSTABLE.1)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    let status = command
        .status()
        .map_err(|error| Error::Build(error.to_string()))?;
    if !status.success() {
        return Err(Error::Build(status.to_string()));
    }
    Ok(home.join(triple).join("release"))
}

/// Runs one target for the time in `options`.
fn run_target(
    name: &str,
    options: &FuzzOptions,
    workspace: &Path,
    home: &Path,
    programs: &Path,
) -> Result<Finding, Error> {
    let corpus = home.join("corpus").join(name);
    let artifacts = home.join("artifacts").join(name);
    for directory in [&corpus, &artifacts] {
        fs::create_dir_all(directory).map_err(at(directory))?;
    }
    seeds::provide(name, workspace, &corpus)?;

    println!("xtask: fuzz: {name}, {} seconds", options.time);
    let mut command = Command::new(programs.join(name));
    command
        .arg(&corpus)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={}", options.time))
        .arg(format!("-max_len={MAX_LEN}"))
        .arg(format!("-timeout={TIMEOUT}"))
        .arg(format!("-rss_limit_mb={MEMORY}"))
        .arg(format!("-seed={}", options.seed))
        .arg("-print_final_stats=1")
        .current_dir(home)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    // Regression inputs are part of the corpus.
    let regressions = workspace.join("fuzz/regressions").join(name);
    if regressions.is_dir() {
        command.arg(regressions);
    }
    let dictionary = workspace.join(format!("fuzz/dictionaries/{name}.dict"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    let started = Instant::now();
    let program = programs.join(name);
    let mut child = command.spawn().map_err(at(&program))?;
    let mut progress = Progress::default();
    let mut reported = Instant::now();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            progress.read_line(&line);
            if reported.elapsed() >= REPORT_INTERVAL {
                println!("  {progress}");
                reported = Instant::now();
            }
        }
    }
    let status = child.wait().map_err(at(&program))?;
    let problem = (!status.success()).then(|| {
        for line in &progress.complaint {
            println!("  {line}");
        }
        match &progress.artifact {
            Some(file) => format!("cargo run -p urxe-fuzz --bin {name} {file}"),
            None => status.to_string(),
        }
    });
    Ok(Finding {
        target: name.to_owned(),
        took: started.elapsed(),
        progress,
        problem,
    })
}
