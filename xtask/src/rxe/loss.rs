//! `--loss`: TCP CUBIC, rxe and urxe carry the same data over the same netem in one guest, in turn.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::bench::median;
use super::error::{AtPath, Result};
use super::guest::{Clock, Guest, Kernel};
use super::job;

/// The start of the lines that are results.
const MARK: &str = "loss: ";

/// The operation and the carrier of each column, as `tests/rxe/loss.sh` names them, and its title.
const COLUMNS: [(&str, &str, &str); 5] = [
    ("stream", "tcp", "TCP CUBIC"),
    ("send", "rxe", "rxe SEND"),
    ("send", "urxe", "urxe SEND"),
    ("read", "rxe", "rxe READ"),
    ("read", "urxe", "urxe READ"),
];

/// The results of all rounds, by path, operation and carrier: the throughput in Mbit/s, and the
/// share of delivered bytes that were not needed, in percent. Failed runs have none.
#[derive(Default)]
struct Results {
    paths: Vec<String>,
    runs: BTreeMap<[String; 3], Vec<(f64, f64)>>,
}

impl Results {
    /// Adds a line of the job: round trip, loss, operation, carrier, throughput, needless share.
    fn add(&mut self, line: &str) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [round_trip, loss, operation, carrier, throughput, needless] = fields[..] else {
            return;
        };
        let path = format!("{round_trip}, {loss}");
        if !self.paths.contains(&path) {
            self.paths.push(path.clone());
        }
        let key = [path, operation.to_owned(), carrier.to_owned()];
        let runs = self.runs.entry(key).or_default();
        if let (Ok(throughput), Ok(needless)) = (throughput.parse(), needless.parse()) {
            runs.push((throughput, needless));
        }
    }

    /// Returns the table in Markdown, with the medians.
    fn table(&self) -> String {
        let titles = COLUMNS.map(|(_, _, title)| title).join(" | ");
        let mut text = format!(
            "| round trip, loss | {titles} |\n|---|{}",
            "---|".repeat(COLUMNS.len())
        );
        for path in &self.paths {
            let cells = COLUMNS.map(|(operation, carrier, _)| {
                let key = [path.clone(), operation.to_owned(), carrier.to_owned()];
                let runs = self.runs.get(&key).map_or(&[][..], Vec::as_slice);
                let of = |part: fn(&(f64, f64)) -> f64| median(runs.iter().map(part).collect());
                match of(|run| run.0).zip(of(|run| run.1)) {
                    // The bytes that iperf3 reports are rounded.
                    Some((throughput, _)) if carrier == "tcp" => format!("{throughput:.1}"),
                    Some((throughput, needless)) => format!("{throughput:.1}, {needless:.1}%"),
                    None => "fails".into(),
                }
            });
            text.push_str(&format!("\n| {path} | {} |", cells.join(" | ")));
        }
        text
    }
}

/// Runs the job, `rounds` times each cell, and prints the table. Returns whether each carrier
/// completed a transfer over each path.
pub(crate) fn run(kernel: Kernel, rounds: u32, workspace: &Path, target: &Path) -> Result<bool> {
    let directory = target.join("rxe");
    let guest = Guest::prepare(&directory, kernel)?;
    println!(
        "rxe: TCP, rxe and urxe on paths with losses, on Linux {}",
        guest.release
    );
    let job = directory.join(kernel.name()).join("loss");
    job::make(&job, workspace, target, guest.root(), &[])?;
    let script = job.join("run");
    fs::write(&script, format!("exec bash /job/loss.sh {rounds}\n")).at(&script)?;
    let mut results = Results::default();
    guest.run_by(Clock::Instructions, &job, &mut |line| {
        println!("{line}");
        if let Some(line) = line.strip_prefix(MARK) {
            results.add(line);
        }
    })?;
    println!("\n{}", results.table());
    println!("Mbit/s of payload, and the share of delivered bytes that was not needed; medians.");
    let cells = results.paths.len() * COLUMNS.len();
    let complete = results
        .runs
        .values()
        .filter(|runs| !runs.is_empty())
        .count();
    Ok(cells > 0 && complete == cells)
}
