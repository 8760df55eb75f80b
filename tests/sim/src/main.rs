//! `cargo xtask sim`: many seeds of a simulation, with progress. A failure is shrunk and shown.

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use std::time::Instant;
use urxe_sim::limits::{Fault, Limits};
use urxe_sim::seeds::{self, Run, Stats};
use urxe_sim::{cm, connection, crowd, throughput};

/// Run seeded simulations of the protocol, with virtual time and bad networks.
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
struct Options {
    /// What to simulate.
    #[arg(value_enum, default_value = "connection")]
    world: World,

    /// How many seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,

    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// Replay this seed alone, and tell what happens.
    #[arg(long)]
    seed: Option<u64>,

    /// Threads; as many as there are processors, if not said.
    #[arg(long)]
    threads: Option<usize>,

    /// With --seed: work requests of an endpoint, or attempts to connect, at most.
    #[arg(long, requires = "seed")]
    ops: Option<usize>,

    /// With --seed: the longest message, in bytes.
    #[arg(long, requires = "seed")]
    longest: Option<usize>,

    /// With --seed: faults that shall not happen, comma-separated.
    #[arg(long, value_enum, value_delimiter = ',', requires = "seed")]
    without: Vec<Fault>,
}

#[derive(Clone, Copy, ValueEnum)]
enum World {
    /// Two endpoints of a reliable connection.
    Connection,
    /// Hosts with many queue pairs of all services, some of which fail and connect anew.
    Crowd,
    /// Hosts that connect and disconnect.
    Cm,
    /// How well connections use links that lose or queue little: a table.
    Throughput,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match options.world {
        World::Connection => simulate(&options, "connection", connection::run),
        World::Crowd => simulate(&options, "crowd", crowd::run),
        World::Cm => simulate(&options, "cm", cm::run),
        World::Throughput => {
            throughput::table(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
    }
}

fn simulate<S: Stats>(options: &Options, world: &str, run: impl Run<S>) -> ExitCode {
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
    println!("making seed {seed} smaller");
    let limits = seeds::shrink(seed, &run);
    println!(
        "watch it with: cargo xtask sim {world} --seed {seed}{}",
        limits.options()
    );
    ExitCode::FAILURE
}
