//! `cargo xtask bench --threads`: threads of one process, compared with as many processes.
//!
//! Each thread of `benches/threads.c` has a completion queue and queue pairs of its own. Threads of
//! one process should carry as much as processes with one thread each.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::page;
use crate::release;

/// The sizes of messages in bytes, and the number of messages that are outstanding.
const MESSAGES: [(usize, usize); 4] = [(64, 1), (64, 16), (65_536, 1), (65_536, 16)];

/// The rounds, in each of which all numbers are measured in turn. The medians are reported.
const ROUNDS: usize = 5;

/// The duration of a measurement in seconds.
const SECONDS: &str = "1";

/// The lines around the table in the page.
const BEGIN: &str = "<!-- Threads: written by `cargo xtask bench --threads --write`. -->";
const END: &str = "<!-- End of the threads. -->";

/// Messages per second, all threads and processes together.
#[derive(Clone, Copy)]
struct Rates {
    one: f64,
    threads: f64,
    processes: f64,
}

/// Measures, prints the table and, if `write`, writes it to the page. Returns true.
pub(super) fn run(workspace: &Path, target: &Path, write: bool) -> Result<bool, String> {
    let program = release::build_c("threads", workspace, target)?;
    let most = thread::available_parallelism().map_or(1, |count| count.get());
    let counts: Vec<usize> = (1..=4)
        .map(|power| 1 << power)
        .take_while(|count| *count <= most.max(2))
        .collect();
    let mut text = String::from(
        "| messages | threads | 1 thread, M/s | threads, M/s | processes, M/s \
         | threads : processes |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (size, window) in MESSAGES {
        for count in &counts {
            eprintln!("threads: {count}, {window} messages of {size} bytes");
            let rounds: Result<Vec<Rates>, String> = (0..ROUNDS)
                .map(|_| rates(&program, *count, size, window))
                .collect();
            let rounds = rounds?;
            let of = |value: fn(&Rates) -> f64| median(rounds.iter().map(value).collect());
            let _ = writeln!(
                text,
                "| {size} bytes, {window} outstanding | {count} | {:.3} | {:.3} | {:.3} | {:.2} |",
                of(|rates| rates.one) / 1e6,
                of(|rates| rates.threads) / 1e6,
                of(|rates| rates.processes) / 1e6,
                of(|rates| rates.threads / rates.processes),
            );
        }
    }
    println!("{text}");
    if write {
        let page = workspace.join("docs/PERFORMANCE.md");
        let error = |error| format!("{}: {error}", page.display());
        let old = fs::read_to_string(&page).map_err(error)?;
        let (before, _, after) = page::sections(&old, BEGIN, END)?;
        fs::write(&page, format!("{before}{BEGIN}\n\n{text}\n{END}{after}")).map_err(error)?;
    }
    Ok(true)
}

/// Measures one thread, threads, and processes, in turn.
fn rates(program: &Path, count: usize, size: usize, window: usize) -> Result<Rates, String> {
    let measure = |processes: usize, threads: usize| {
        let start = || {
            Command::new(program)
                .args([threads, size, window].map(|argument| argument.to_string()))
                .arg(SECONDS)
                .env_remove("LD_LIBRARY_PATH")
                .stdout(Stdio::piped())
                .spawn()
        };
        let running: Result<Vec<_>, _> = (0..processes).map(|_| start()).collect();
        let running = running.map_err(|error| format!("{}: {error}", program.display()))?;
        running.into_iter().map(rate).sum::<Result<f64, String>>()
    };
    Ok(Rates {
        one: measure(1, 1)?,
        threads: measure(1, count)?,
        processes: measure(count, 1)?,
    })
}

/// Waits for a process of `benches/threads.c`, and returns its result.
fn rate(process: std::process::Child) -> Result<f64, String> {
    let output = process
        .wait_with_output()
        .map_err(|error| format!("threads: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.trim().parse().ok().filter(|_| output.status.success());
    rate.ok_or_else(|| format!("threads: {}", output.status))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
