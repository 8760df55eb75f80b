//! `cargo xtask sim`: runs many seeds of a simulation, and shrinks the first failure.

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use std::time::Instant;
use urxe_sim::limits::{Fault, Limits};
use urxe_sim::seeds::{self, Run, Stats};
use urxe_sim::{cm, connection, many_qps, paths, throughput};

/// Run seeded simulations of the protocol, with virtual time and bad networks.
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
struct Options {
    /// The simulation.
    #[arg(value_enum, default_value = "connection")]
    simulation: Simulation,

    /// The number of seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,

    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// Run only this seed, and print its events.
    #[arg(long)]
    seed: Option<u64>,

    /// The number of threads [default: the number of processors].
    #[arg(long)]
    threads: Option<usize>,

    /// With --seed: the maximum number of work requests of an endpoint, or of attempts to connect.
    #[arg(long, requires = "seed")]
    ops: Option<usize>,

    /// With --seed: the maximum length of a message, in bytes.
    #[arg(long, requires = "seed")]
    longest: Option<usize>,

    /// With --seed: faults to disable, comma-separated.
    #[arg(long, value_enum, value_delimiter = ',', requires = "seed")]
    without: Vec<Fault>,

    /// With `paths`, `queues`, `congestion` or `reordering`: write the table to docs/CONGESTION.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Simulation {
    /// Two endpoints of a reliable connection.
    Connection,
    /// Hosts with many queue pairs of all services. Connections fail and are replaced.
    ManyQps,
    /// The connection manager: hosts that connect and disconnect.
    Cm,
    /// The link utilization of connections over links with loss or short queues: a table.
    Throughput,
    /// The link utilization of connections over paths without loss, short and long, and the packets
    /// that were sent again: a table.
    Paths,
    /// The link utilization of the congestion control algorithms over paths with queues that hold
    /// less than the path carries in a round trip: a table.
    Queues,
    /// The link utilization of the congestion control algorithms over paths with random losses: a
    /// table.
    Congestion,
    /// The same over paths that lose nothing and reorder.
    Reordering,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match options.simulation {
        Simulation::Connection => simulate(&options, "connection", connection::run),
        Simulation::ManyQps => simulate(&options, "many-qps", many_qps::run),
        Simulation::Cm => simulate(&options, "cm", cm::run),
        Simulation::Throughput => {
            throughput::table(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Simulation::Paths => table("paths", options.write, paths::matrix),
        Simulation::Queues => table("queues", options.write, paths::queues),
        Simulation::Congestion => table("congestion", options.write, paths::congestion),
        Simulation::Reordering => table("reordering", options.write, paths::reordering),
    }
}

/// The page with the tables.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONGESTION.md");
const TABLE_END: &str = "<!-- end of the table -->\n";

/// Prints the table `name`, and writes it to its place in the page if `write` is set.
fn table(name: &str, write: bool, lines: impl FnOnce(&mut dyn FnMut(String))) -> ExitCode {
    let mut table = String::new();
    lines(&mut |line| {
        println!("{line}");
        table.push_str(&line);
        table.push('\n');
    });
    if !write {
        return ExitCode::SUCCESS;
    }
    let begin = format!("<!-- cargo xtask sim {name} --write -->\n");
    let replace = |page: &str| {
        let (before, rest) = page.split_once(&begin)?;
        let (_, after) = rest.split_once(TABLE_END)?;
        Some([before, &begin, &table, TABLE_END, after].concat())
    };
    let written = std::fs::read_to_string(PAGE).and_then(|page| match replace(&page) {
        Some(page) => std::fs::write(PAGE, page),
        None => Err(std::io::Error::other(
            "the lines around the table are missing",
        )),
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{PAGE}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn simulate<S: Stats>(options: &Options, name: &str, run: impl Run<S>) -> ExitCode {
    if let Some(seed) = options.seed {
        let limits = Limits {
            ops: options.ops.unwrap_or(usize::MAX),
            longest: options.longest.unwrap_or(usize::MAX),
            without: options.without.clone(),
        };
        eprintln!("{:#?}", run(seed, &limits, true));
        return ExitCode::SUCCESS;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or(processors);
    let last = options.first.saturating_add(options.seeds);
    let started = Instant::now();
    let outcome = seeds::run(options.first..last, threads, &run, |done| {
        let rate = done as f64 / started.elapsed().as_secs_f64();
        println!("{done} of {} seeds, {rate:.0} a second", options.seeds);
    });
    println!("{:#?}", outcome.total);
    let rate = outcome.seeds as f64 / outcome.took.as_secs_f64().max(1e-9);
    println!(
        "{} seeds in {:.1} s, {rate:.0} a second; {} failed",
        outcome.seeds,
        outcome.took.as_secs_f64(),
        outcome.failed.len()
    );
    let Some(&seed) = outcome.failed.first() else {
        return ExitCode::SUCCESS;
    };
    println!("shrinking seed {seed}");
    let limits = seeds::shrink(seed, &run);
    println!(
        "replay it with: cargo xtask sim {name} --seed {seed}{}",
        limits.options()
    );
    ExitCode::FAILURE
}
