//! `cargo xtask rxe`: urxe against the Linux kernel's rxe, in a guest on this machine.
//!
//! [`archive`] and [`guest`] make and boot the guest, [`plan`] has the matrix, [`job`] brings it there,
//! [`report`] judges what came back, with the list of what is [`known`].

mod again;
mod archive;
mod bench;
mod cpio;
mod error;
mod fuzz;
mod guest;
mod job;
mod known;
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

/// What to run.
#[derive(clap::Args, Default)]
pub(crate) struct RxeOptions {
    /// The kernel, and the release of Debian around it.
    #[arg(long, value_enum, default_value = "bookworm")]
    kernel: Kernel,

    /// Give a shell in the guest, with the two hosts set up, instead of running anything.
    #[arg(long)]
    shell: bool,

    /// Run a part that takes a few minutes.
    #[arg(long)]
    quick: bool,

    /// Run only cells whose full name, as `--list` shows it, has this in it; `*` stands for anything.
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,

    /// Run the cells between two hosts of one kind: what does rxe alone, or urxe alone, show?
    #[arg(long, value_enum, value_name = "PROVIDER")]
    between: Option<Provider>,

    /// Capture every kind of packet that rxe sends, as test vectors for the wire formats.
    #[arg(long)]
    capture: bool,

    /// Run nothing: judge the last run again, after a change to the list of what is known.
    #[arg(long)]
    judge: bool,

    /// Run the red cells of the last whole run again, and judge the whole by what they show now.
    #[arg(long, conflicts_with_all = ["quick", "only", "capture", "bench", "fuzz", "between"])]
    again: bool,

    /// Measure instead: rxe to rxe and urxe to urxe, in turn.
    #[arg(long)]
    bench: bool,

    /// Send 100,000 packets that break the rules to rxe, and write down how it answers.
    #[arg(long, conflicts_with = "bench")]
    fuzz: bool,

    /// List the cells instead of running them.
    #[arg(long)]
    list: bool,
}

/// One of the two implementations, with two hosts of its own in the guest.
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
    /// Whether the whole matrix is asked for.
    fn is_everything(&self) -> bool {
        let measures = self.capture || self.bench || self.fuzz;
        !self.quick && !measures && self.only.is_none() && self.between.is_none()
    }

    /// The directory of what ran last; the last whole run stays when a part runs.
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

/// Runs the command; whether everything that ran succeeded.
pub(crate) fn run(options: &RxeOptions, workspace: &Path, target: &Path) -> bool {
    let succeeded = if options.list {
        list(options)
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

/// Runs the quick part of the matrix as a step of the check; with `only`, the cells that are like it.
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
        // As for tests whose needs are not met: left out here, failed where all must run.
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
    let tries = match options.judge {
        true => fuzz::Tries::of_last_job(&job)?,
        false => fuzz::Tries::run(&job, |groups| {
            run_in(&guest, &job, options, workspace, target, groups)
        })?,
    };
    let name = format!("docs/RXE-DEPARTURES-{}.md", options.kernel.name());
    tries.write(&guest.release, &workspace.join(name))?;
    Ok(true)
}

fn run_cells(options: &RxeOptions, workspace: &Path, target: &Path) -> Result<Report> {
    let groups = chosen(options)?;
    let directory = target.join("rxe");
    let guest = Guest::prepare(&directory, options.kernel)?;
    let job = directory
        .join(options.kernel.name())
        .join(options.job_name());
    if options.judge {
        return judge(options, workspace, &directory, &guest, &groups, &job);
    }
    if options.again {
        let mut red = plan::groups(Extent::Full);
        let results = job.join("results");
        again::keep_red(
            &mut red,
            &Report::read(&results, &groups, &guest.release, &Known::load())?,
        );
        with_references(&mut red);
        red.retain(|group| !group.cells.is_empty());
        let part = job.with_file_name("part");
        run_in(&guest, &part, options, workspace, target, &red)?;
        again::merge(&part.join("results"), &results, &red, &groups)?;
        return judge(options, workspace, &directory, &guest, &groups, &job);
    }
    run_in(&guest, &job, options, workspace, target, &groups)?;
    judge(options, workspace, &directory, &guest, &groups, &job)
}

/// Runs `groups` as the job in `job`.
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

/// Looks at what a job left.
fn judge(
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

/// The groups to run, with the cells that were asked for.
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

/// Puts back the reference's cells for those that are held against them.
fn with_references(groups: &mut [Group]) {
    let wanted: Vec<String> = groups
        .iter()
        .filter(|group| group.judge == plan::Judge::Reference)
        .flat_map(|group| group.cells.iter().map(|cell| cell.name.clone()))
        .collect();
    for whole in plan::groups(Extent::Full) {
        if whole.judge != plan::Judge::Measured {
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
