//! `cargo xtask rxe`: interoperability of urxe with the Linux kernel's rxe, in a QEMU guest.
//!
//! [`archive`] and [`guest`] build and boot the guest, [`plan`] defines the matrix, [`job`] copies
//! it to the guest, and [`report`] evaluates the results with the list of [`known`] differences.

mod again;
mod archive;
mod bench;
mod cpio;
mod error;
mod fuzz;
mod guest;
mod job;
mod kernels;
mod known;
mod loss;
mod page;
mod plan;
mod report;
mod vectors;

use std::env;
use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::outcome::Outcome;
use crate::test_log::TestLog;

use error::{AtPath, Error, Result};
use guest::{Guest, Kernel};
use known::Known;
use plan::{Extent, Group};
use report::{Report, Verdict};

/// The options of the command.
#[derive(clap::Args, Default)]
pub(crate) struct RxeOptions {
    /// Kernel and Debian release of the guest
    #[arg(long, value_enum, default_value = "bookworm")]
    kernel: Kernel,

    /// Start a shell in the guest with the two hosts set up, instead of running cells
    #[arg(long)]
    shell: bool,

    /// Run a part of the matrix that takes a few minutes
    #[arg(long)]
    quick: bool,

    /// Run only cells whose full name contains PATTERN, where `*` matches any text; see --list
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,

    /// Run the cells between two hosts of the same provider
    #[arg(long, value_enum, value_name = "PROVIDER")]
    between: Option<Provider>,

    /// Capture every kind of packet that rxe sends, as test vectors for the wire formats
    #[arg(long)]
    capture: bool,

    /// Evaluate the last run again, after a change to the list of known differences
    #[arg(long)]
    evaluate: bool,

    /// Run the red cells of the last complete run again and merge their results
    #[arg(long, conflicts_with_all = [
        "quick", "only", "capture", "bench", "fuzz", "between", "evaluate", "list", "shell", "kernels"
    ])]
    again: bool,

    /// Measure the performance of rxe and urxe in turn
    #[arg(long)]
    bench: bool,

    /// Send 100,000 malformed and valid packets to rxe and write a page about its responses
    #[arg(long, conflicts_with = "bench")]
    fuzz: bool,

    /// Run urxe alone on the kernels of Debian 11 to 13 and of their backports: the demo and
    /// ibv_rc_pingpong
    #[arg(long, conflicts_with_all = ["bench", "fuzz"])]
    kernels: bool,

    /// Measure TCP CUBIC, rxe and urxe in turn over paths with random losses, this many times each
    #[arg(long, value_name = "ROUNDS", num_args = 0..=1, default_missing_value = "3",
        conflicts_with_all = [
            "again", "between", "bench", "capture", "evaluate", "fuzz", "kernels", "list", "only", "quick",
            "shell"
        ])]
    loss: Option<u32>,

    /// List the cells instead of running them
    #[arg(long)]
    list: bool,
}

/// An implementation, of which two hosts run in the guest.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Provider {
    Rxe,
    Urxe,
}

impl Provider {
    fn sides(self) -> [&'static str; 2] {
        match self {
            Self::Rxe => ["rxe1", "rxe2"],
            Self::Urxe => ["urxe1", "urxe2"],
        }
    }
}

impl RxeOptions {
    /// Returns whether the complete matrix is selected.
    fn is_everything(&self) -> bool {
        let measures = self.capture || self.bench || self.fuzz;
        !self.quick && !measures && self.only.is_none() && self.between.is_none()
    }

    /// Returns the directory of the job. A partial run does not overwrite the last complete run.
    fn job_name(&self) -> &'static str {
        if self.capture {
            "capture"
        } else if self.bench {
            "bench"
        } else if self.fuzz {
            "fuzz"
        } else if self.is_everything() {
            "whole"
        } else {
            "part"
        }
    }
}

/// Runs the command. Returns whether everything that ran succeeded.
pub(crate) fn run(options: &RxeOptions, workspace: &Path, target: &Path) -> bool {
    let succeeded = if options.list {
        list(options)
    } else if options.kernels {
        kernels::run(workspace, target)
    } else if let Some(rounds) = options.loss {
        loss::run(options.kernel, rounds, workspace, target)
    } else if options.shell {
        shell(options, workspace, target)
    } else if options.fuzz {
        fuzz(options, workspace, target)
    } else {
        run_cells(options, workspace, target).map(|report| report.succeeded())
    };
    succeeded.unwrap_or_else(|error| {
        eprintln!("rxe: {error}");
        false
    })
}

/// Runs the quick part of the matrix, or the cells that match `only`, as a step of the check.
pub(crate) fn step(only: Option<&str>, workspace: &Path, target: &Path) -> Outcome {
    println!("\nxtask: rxe: urxe against the kernel's rxe");
    let started = Instant::now();
    let options = RxeOptions {
        quick: only.is_none(),
        only: only.map(str::to_owned),
        ..RxeOptions::default()
    };
    let mut log = TestLog::default();
    let problem = match run_cells(&options, workspace, target) {
        Ok(report) => {
            log.passed = report.total(Verdict::Green) + report.total(Verdict::Known);
            log.failed = report.total(Verdict::Red);
            (log.failed > 0).then(|| format!("{} cells are red", log.failed))
        }
        // With unmet needs the step is skipped, or fails where all tests must run.
        Err(error) if error.is_a_need() && env::var("CI").as_deref() != Ok("true") => {
            log.left_out.push(format!("rxe: {error}"));
            None
        }
        Err(error) => Some(error.to_string()),
    };
    Outcome {
        step: "rxe",
        problem,
        took: started.elapsed(),
        log,
    }
}

fn list(options: &RxeOptions) -> Result<bool> {
    for group in chosen(options)? {
        for cell in group.cells {
            println!("{}/{}", group.name, cell.name);
        }
    }
    Ok(true)
}

fn shell(options: &RxeOptions, workspace: &Path, target: &Path) -> Result<bool> {
    let directory = target.join("rxe");
    let guest = Guest::prepare(&directory, options.kernel)?;
    let job = directory.join(options.kernel.name()).join("shell");
    job::make(&job, workspace, target, guest.root(), &[])?;
    println!(
        "rxe: `on urxe COMMAND` and `on rxe COMMAND` run programs on either host; `exit` ends the guest"
    );
    guest.shell(&job)?;
    Ok(true)
}

fn fuzz(options: &RxeOptions, workspace: &Path, target: &Path) -> Result<bool> {
    let directory = target.join("rxe");
    let guest = Guest::prepare(&directory, options.kernel)?;
    let job = directory
        .join(options.kernel.name())
        .join(options.job_name());
    let fuzz_results = match options.evaluate {
        true => fuzz::FuzzResults::of_last_job(&job)?,
        false => fuzz::FuzzResults::run(&job, |groups| {
            run_in(&guest, &job, options, workspace, target, groups)
        })?,
    };
    let name = format!("docs/RXE-VIOLATIONS-{}.md", options.kernel.name());
    fuzz_results.write(&guest.release, &workspace.join(name))?;
    Ok(true)
}

fn run_cells(options: &RxeOptions, workspace: &Path, target: &Path) -> Result<Report> {
    let groups = chosen(options)?;
    let directory = target.join("rxe");
    let guest = Guest::prepare(&directory, options.kernel)?;
    let job = directory
        .join(options.kernel.name())
        .join(options.job_name());
    if options.evaluate {
        return evaluate(options, workspace, &directory, &guest, &groups, &job);
    }
    if options.again {
        let mut red = plan::groups(Extent::Full);
        let results = job.join("results");
        again::require_complete_run(&results)?;
        again::keep_red(
            &mut red,
            &Report::read(&results, &groups, &guest.release, &Known::load())?,
        );
        with_references(&mut red);
        red.retain(|group| !group.cells.is_empty());
        if red.is_empty() {
            println!("rxe: no cell of the last complete run is red");
            return evaluate(options, workspace, &directory, &guest, &groups, &job);
        }
        let part = job.with_file_name("part");
        run_in(&guest, &part, options, workspace, target, &red)?;
        again::merge(&part.join("results"), &results, &red, &groups)?;
        return evaluate(options, workspace, &directory, &guest, &groups, &job);
    }
    run_in(&guest, &job, options, workspace, target, &groups)?;
    evaluate(options, workspace, &directory, &guest, &groups, &job)
}

/// Runs `groups` as the job in the directory `job`.
fn run_in(
    guest: &Guest,
    job: &Path,
    options: &RxeOptions,
    workspace: &Path,
    target: &Path,
    groups: &[Group],
) -> Result<()> {
    job::make(job, workspace, target, guest.root(), groups)?;
    let cells: usize = groups.iter().map(|group| group.cells.len()).sum();
    if options.capture {
        let request = job.join("capture");
        fs::write(&request, "").at(&request)?;
    }
    println!("rxe: {cells} cells on Linux {}", guest.release);
    guest.run(job, &mut |line| println!("{line}"))
}

/// Evaluates the results of a job.
fn evaluate(
    options: &RxeOptions,
    workspace: &Path,
    directory: &Path,
    guest: &Guest,
    groups: &[Group],
    job: &Path,
) -> Result<Report> {
    let results = job.join("results");
    if options.capture {
        let file = workspace.join("proto/tests/vectors/rxe.txt");
        let count = vectors::write(&results.join("capture.pcap"), &file, &guest.release)?;
        println!("rxe: wrote {count} packets to {}", file.display());
    }
    if options.bench {
        bench::print(&results)?;
    }
    let report = Report::read(&results, groups, &guest.release, &Known::load())?;
    report.print();
    if options.is_everything() {
        page::keep(
            directory,
            options.kernel,
            guest,
            &report,
            &again::names(&results),
        )?;
        let file = workspace.join("docs/COMPATIBILITY.md");
        fs::write(&file, page::write(directory)?).at(&file)?;
        println!("rxe: wrote {}", file.display());
    }
    Ok(report)
}

/// Returns the groups to run, with the selected cells.
fn chosen(options: &RxeOptions) -> Result<Vec<Group>> {
    let extent = if options.quick {
        Extent::Quick
    } else {
        Extent::Full
    };
    let mut groups = if options.capture {
        plan::to_capture()
    } else if options.bench {
        bench::groups()
    } else if options.fuzz {
        fuzz::groups()
    } else {
        plan::groups(extent)
    };
    if let Some(provider) = options.between {
        for group in &mut groups {
            group.sides = provider.sides();
        }
    }
    if let Some(pattern) = &options.only {
        let pattern_anywhere = format!("*{pattern}*");
        for group in &mut groups {
            let name = group.name;
            group
                .cells
                .retain(|cell| known::matches(&pattern_anywhere, &format!("{name}/{}", cell.name)));
        }
        with_references(&mut groups);
        groups.retain(|group| !group.cells.is_empty());
        if groups.is_empty() {
            return Err(Error::NothingMatches {
                pattern: pattern.clone(),
            });
        }
    }
    Ok(groups)
}

/// Restores the reference cells that selected cells are compared with.
fn with_references(groups: &mut [Group]) {
    let wanted: Vec<String> = groups
        .iter()
        .filter(|group| group.expectation == plan::Expectation::Reference)
        .flat_map(|group| group.cells.iter().map(|cell| cell.name.clone()))
        .collect();
    for whole in plan::groups(Extent::Full) {
        if whole.expectation != plan::Expectation::Measured {
            continue;
        }
        for group in groups.iter_mut().filter(|group| group.name == whole.name) {
            let present = |name: &str| group.cells.iter().any(|cell| cell.name == name);
            let missing: Vec<bool> = whole
                .cells
                .iter()
                .map(|cell| wanted.contains(&cell.name) && !present(&cell.name))
                .collect();
            let missing = whole
                .cells
                .iter()
                .zip(missing)
                .filter(|(_, missing)| *missing);
            let missing: Vec<plan::Cell> = missing
                .map(|(cell, _)| plan::Cell {
                    name: cell.name.clone(),
                    line: cell.line.clone(),
                })
                .collect();
            group.cells.extend(missing);
        }
    }
}
