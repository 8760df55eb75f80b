//! `--fuzz`: `urxe fuzz` against rxe in the guest, and the page of rxe's violations of the
//! specification.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;

use super::error::{AtPath, Error, Result};
use super::plan::{Expectation, Group, Kind, programs_between};

/// The total number of packets.
const ALL: u64 = 100_000;
/// The number of packets per cell, each with a seed of its own, so that a cell meets its time
/// limit.
const PACKETS: u64 = 1000;
/// The response timeout in milliseconds. rxe often sends no response, and each timeout is waited
/// for.
const TIMEOUT_MS: u32 = 100;

/// Returns the cells to run.
pub(crate) fn groups() -> Vec<Group> {
    vec![group(1..1 + ALL / PACKETS)]
}

fn group(seeds: Range<u64>) -> Group {
    let cells = seeds.map(|seed| {
        let server = "/tmp/grant {address}";
        let client = format!(
            "/tmp/urxe/urxe fuzz {{server}} --seed {seed} --packets {PACKETS} --timeout {TIMEOUT_MS}"
        );
        programs_between(format!("seed-{seed}"), ["a", "b"], "1+", server, &client)
    });
    Group {
        name: "fuzz",
        kind: Kind::Programs,
        expectation: Expectation::Measured,
        sides: ["rxe", "urxe"],
        ip: "v4",
        netem: "",
        lanes: 1,
        about: "malformed and valid packets, sent to a program on rxe",
        cells: cells.collect(),
    }
}

/// The responses of rxe to all packets, and the messages of its kernel.
#[derive(Default)]
pub(crate) struct FuzzResults {
    sum: Sum,
    crashes: Vec<String>,
    complaints: BTreeMap<String, u64>,
}

impl FuzzResults {
    /// Runs the groups with `run_job` as the job in `job`, until all packets have been sent. If the
    /// guest crashes, continues in another guest with the next seed.
    pub(crate) fn run(job: &Path, mut run_job: impl FnMut(&[Group]) -> Result<()>) -> Result<Self> {
        let mut fuzz_results = FuzzResults::default();
        let mut next = 1;
        while fuzz_results.sum.packets < ALL {
            let seeds = next..next + (ALL - fuzz_results.sum.packets).div_ceil(PACKETS);
            let ended = run_job(&[group(seeds.clone())]);
            let survived = fuzz_results.add(&job.join("results"))?;
            match ended {
                Ok(()) => next = seeds.end,
                Err(Error::GuestDied { console }) => {
                    let seed = next + survived;
                    let log = fs::read_to_string(&console).at(&console)?;
                    let words = crash_cause(&log);
                    fuzz_results.crashes.push(format!("seed {seed}: {words}"));
                    next = seed + 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(fuzz_results)
    }

    /// Reads the results of the last job of an earlier run.
    pub(crate) fn of_last_job(job: &Path) -> Result<Self> {
        let mut fuzz_results = FuzzResults::default();
        fuzz_results.add(&job.join("results"))?;
        Ok(fuzz_results)
    }

    /// Adds the results of a job, and returns the number of completed cells.
    fn add(&mut self, results: &Path) -> Result<u64> {
        let file = results.join("fuzz.output");
        let output = fs::read_to_string(&file).at(&file)?;
        self.sum.add(&output);
        // Missing if the kernel crashed.
        let log = fs::read_to_string(results.join("fuzz.dmesg")).unwrap_or_default();
        for (what, times) in kernel_warnings(&log) {
            *self.complaints.entry(what).or_default() += times;
        }
        Ok(output.matches("== seed-").count() as u64)
    }

    /// Prints the results and writes them to `page`.
    pub(crate) fn write(&self, release: &str, page: &Path) -> Result<()> {
        let mut text = self.sum.page(release);
        if !self.complaints.is_empty() {
            text.push_str("\n## Kernel warnings\n\n| where | times |\n|---|---|\n");
        }
        for (what, times) in &self.complaints {
            let _ = writeln!(text, "| {what} | {times} |");
        }
        if !self.crashes.is_empty() {
            text.push_str("\n## Kernel crashes\n\n");
        }
        for crash in &self.crashes {
            let _ = writeln!(text, "- {crash}");
        }
        println!("\n{text}");
        fs::write(page, text).at(page)?;
        println!("rxe: wrote {}", page.display());
        Ok(())
    }
}

/// Replaces numbers, because PSNs and lengths differ in each run.
fn without_numbers(text: &str) -> String {
    let mut plain = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        plain.push_str(if digits > 0 { "n" } else { "" });
        plain.push_str(&piece[digits..]);
    }
    plain
}

/// Returns the locations of kernel warnings, without addresses, and their counts.
fn kernel_warnings(log: &str) -> BTreeMap<String, u64> {
    let mut complaints = BTreeMap::new();
    for line in log.lines() {
        if let Some((_, what)) = line.split_once("WARNING: ") {
            let at = what.split(',').next().unwrap_or(what);
            *complaints.entry(at.to_owned()).or_default() += 1;
        }
    }
    complaints
}

/// Returns the cause and location of a kernel crash.
fn crash_cause(console: &str) -> String {
    let line = |mark: &str| console.lines().find(|line| line.contains(mark));
    let lines = [line("BUG: "), line("RIP: ")].into_iter().flatten();
    // Without the time stamp.
    let words = lines.map(|line| line.split_once("] ").map_or(line, |(_, words)| words));
    words.collect::<Vec<_>>().join(", ")
}

/// The sum of the reports of `urxe fuzz`.
#[derive(Default, Debug, PartialEq, Eq)]
struct Sum {
    packets: u64,
    connections: u64,
    /// The numbers of tests of each rule and of violations of it.
    rules: BTreeMap<String, (u64, u64)>,
    /// The numbers of occurrences of responses that the rule does not allow.
    violations: BTreeMap<(String, String), u64>,
}

impl Sum {
    /// Adds a report of `urxe fuzz`.
    fn add(&mut self, output: &str) {
        let sum = self;
        let mut rule = "";
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some((before, rest)) = line.split_once(" packets in ") {
                let packets = before.rsplit(' ').next().unwrap_or(before);
                sum.packets += packets.parse().unwrap_or(0);
                let connections = rest.split_once("over ").map(|(_, number)| number);
                let number = connections.and_then(|text| text.split(' ').next()?.parse().ok());
                sum.connections += number.unwrap_or(0);
            } else if let [Ok(tried), Ok(violated)] =
                [0, 1].map(|at| words.get(at).unwrap_or(&"").parse::<u64>())
            {
                let known = sum.rules.entry(words[2..].join(" ")).or_default();
                *known = (known.0 + tried, known.1 + violated);
            } else if let Some(violation) = line.strip_prefix("    expected ") {
                let counted = violation.rsplit_once(" times: ");
                let counted = counted.and_then(|(counted, _)| counted.rsplit_once(", "));
                if let Some((what, times)) = counted {
                    let key = (rule.to_owned(), without_numbers(what));
                    *sum.violations.entry(key).or_default() += times.parse().unwrap_or(0);
                }
            } else {
                rule = line;
            }
        }
    }

    fn page(&self, release: &str) -> String {
        let mut page = format!(
            "# Where rxe violates the specification\n\n\
             Generated by `cargo xtask rxe --fuzz`, on Linux {release}: {} packets of `urxe fuzz`, most of which break \
             a rule, over {} connections to a program on rxe (`tests/rxe/grant`). In brackets, the sections of the \
             specification.\n\n| rule | tests | violated |\n|---|---|---|\n",
            self.packets, self.connections
        );
        for (rule, (tried, violated)) in &self.rules {
            let _ = writeln!(page, "| {rule} | {tried} | {violated} |");
        }
        page.push_str("\n## Responses that the specification does not allow\n\n| rule | expected; got | times |\n|---|---|---|\n");
        for ((rule, what), times) in &self.violations {
            let _ = writeln!(page, "| {rule} | {what} | {times} |");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_cause_is_found() {
        let console = "[ 7.1] BUG: kernel NULL pointer dereference\n[ 7.2] Oops\n\
                       [ 7.3] RIP: 0010:rxe_mr_copy+0x49/0x1a0\n[ 7.4] RIP: 0010:halt";
        let words = "BUG: kernel NULL pointer dereference, RIP: 0010:rxe_mr_copy+0x49/0x1a0";
        assert_eq!(crash_cause(console), words);
    }

    #[test]
    fn reports_are_added() {
        let one = "== seed-1\n\
            seed 1: 5001 packets in 700 cases, over 30 connections\n   \
            tests violated  rule\n     \
            600       12  PSN ahead: NAK PSN sequence error (9.7.5.1.2)\n     \
            100        0  another queue pair: dropped (9.6.1.1.2)\n\n\
            PSN ahead: NAK PSN sequence error (9.7.5.1.2)\n    \
            expected a NAK; got ACK of PSN 17, or so, 12 times: --replay 1:2, 1:3\n";
        let mut sum = Sum::default();
        sum.add(one);
        sum.add(one);
        assert_eq!((sum.packets, sum.connections), (10_002, 60));
        let ahead = "PSN ahead: NAK PSN sequence error (9.7.5.1.2)";
        assert_eq!(sum.rules[ahead], (1200, 24));
        assert_eq!(sum.rules.len(), 2);
        let what = "a NAK; got ACK of PSN n, or so".to_owned();
        assert_eq!(
            sum.violations,
            BTreeMap::from([((ahead.to_owned(), what), 24)])
        );
    }
}
