//! `cargo xtask bench`: compares urxe with other transports on this machine.
//!
//! On a shared machine absolute numbers vary, while the ratio of two programs that run in turn is
//! stable. So each round runs every program once, ratios are computed within a round, and the
//! median of the rounds is reported.

mod callgrind;
pub(crate) mod instructions;
mod objects;
mod page;
mod pair;
mod plan;
mod threads;
mod veth;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::namespace;
use crate::release::{self, succeed};
use instructions::Task;
use page::Row;
use pair::Programs;
use plan::Part;

/// The options of the benchmark.
#[derive(clap::Args)]
pub(crate) struct BenchOptions {
    /// Measure only these parts, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,

    /// Number of runs of each program, of which the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Count the instructions of small operations under valgrind instead, and fail if an empty poll
    /// or a round trip takes 3% more than docs/PERFORMANCE.md records
    #[arg(long, conflicts_with_all = ["only", "rounds"])]
    instructions: bool,

    /// With --instructions: measure only an empty poll and a round trip
    #[arg(long, requires = "instructions", conflicts_with = "write")]
    quick: bool,

    /// Measure the time and memory of objects, and bursts of connections, instead
    #[arg(long, conflicts_with_all = ["only", "rounds", "instructions"])]
    objects: bool,

    /// Measure threads of one process, and as many processes, instead
    #[arg(long, conflicts_with_all = ["only", "rounds", "instructions", "objects"])]
    threads: bool,

    /// Write the tables and the chart of docs/PERFORMANCE.md
    #[arg(long)]
    write: bool,

    /// Measure this `urxe` command of another build in the same rounds, and print the ratios
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["instructions", "objects", "threads", "write"])]
    before: Option<PathBuf>,
}

/// Runs the command. Returns whether every cell was measured.
pub(crate) fn run(options: &BenchOptions, workspace: &Path, target: &Path) -> bool {
    match try_run(options, workspace, target) {
        Ok(complete) => complete,
        Err(error) => {
            eprintln!("bench: {error}");
            false
        }
    }
}

fn try_run(options: &BenchOptions, workspace: &Path, target: &Path) -> Result<bool, String> {
    if !namespace::is_inside() {
        build(workspace, target)?;
        if !namespace::enter()? {
            eprintln!(
                "bench: cannot create a network namespace; other traffic may disturb the results"
            );
        }
    }
    if options.instructions {
        let task = match (options.quick, options.write) {
            (true, _) => Task::Check,
            (false, true) => Task::Write,
            (false, false) => Task::Report,
        };
        return instructions::run(workspace, target, task);
    }
    if options.objects {
        return objects::run(workspace, target, options.write);
    }
    if options.threads {
        return threads::run(workspace, target, options.write);
    }
    let programs = Programs::new(target, udp(target));
    let machine = page::machine();
    let mut rows: Vec<Row> = plan::cells(&options.only)
        .into_iter()
        .map(|cell| Row {
            cell,
            runs: Vec::new(),
            before: Vec::new(),
        })
        .collect();
    let mut complete = true;
    // Completes one part before the next, so that compared programs run close together in time.
    for part in Part::ALL {
        for round in 1..=options.rounds {
            for row in rows.iter_mut().filter(|row| row.cell.part == part) {
                eprintln!("{}, round {round}: {}", part.title(), row.cell.name);
                // Alternates the order of the two builds, since the second may find warm caches.
                let builds = match (&options.before, round % 2) {
                    (Some(before), 0) if row.cell.tool.is_urxe() => {
                        vec![(&mut row.before, before), (&mut row.runs, &programs.urxe)]
                    }
                    (Some(before), _) if row.cell.tool.is_urxe() => {
                        vec![(&mut row.runs, &programs.urxe), (&mut row.before, before)]
                    }
                    _ => vec![(&mut row.runs, &programs.urxe)],
                };
                for (runs, urxe) in builds {
                    let measured = pair::run(&row.cell, &programs, urxe);
                    if let Err(error) = &measured {
                        eprintln!("bench: {error}");
                        complete = false;
                    }
                    runs.push(measured.ok());
                }
            }
        }
    }
    let tables = page::tables(&rows);
    println!("{machine}\n{tables}");
    if options.before.is_some() {
        println!("{}", page::comparison(&rows));
    }
    if options.write {
        write(
            workspace,
            &machine,
            &tables,
            &page::chart(&rows),
            options.rounds,
        )?;
    }
    Ok(complete)
}

/// Writes the generated part of the page and keeps the part below the marker.
fn write(
    workspace: &Path,
    machine: &str,
    tables: &str,
    chart: &str,
    rounds: usize,
) -> Result<(), String> {
    const BY_HAND: &str = "<!-- From here on written by hand. -->";
    let file = workspace.join("docs/PERFORMANCE.md");
    let old = fs::read_to_string(&file).unwrap_or_default();
    let by_hand = old.find(BY_HAND).map_or(BY_HAND, |at| &old[at..]);
    let page = format!(
        "# Performance\n\nWritten by `cargo xtask bench --write`: {rounds} rounds, two processes on loopback, MTU 4096 unless it \
         says otherwise. Latencies are medians, one way for send, write and UDP, the whole way and back for read and atomic.\n\n\
         {machine}\n\n![Bandwidth, message rate and latency](performance.svg)\n{tables}\n{by_hand}"
    );
    let error = |error: std::io::Error| format!("{}: {error}", file.display());
    fs::write(&file, page.trim_end().to_owned() + "\n").map_err(error)?;
    fs::write(workspace.join("docs/performance.svg"), chart).map_err(error)
}

fn udp(target: &Path) -> PathBuf {
    target.join("bench/udp")
}

/// Builds the measured programs.
fn build(workspace: &Path, target: &Path) -> Result<(), String> {
    release::build(&release::PRODUCTS, workspace, target)?;
    release::build(&["urxe-bench"], workspace, target)?;
    let udp = udp(target);
    fs::create_dir_all(target.join("bench"))
        .map_err(|error| format!("{}: {error}", udp.display()))?;
    let source = workspace.join("tests/rxe/udp/udp.c");
    succeed(
        Command::new("gcc")
            .args(["-O2", "-o"])
            .arg(&udp)
            .arg(source),
    )
}
