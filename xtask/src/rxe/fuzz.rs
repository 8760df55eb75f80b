//! `--fuzz`: `urxe fuzz` against rxe in the guest, and a page of where rxe departs from the specification.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;

use super::error::{AtPath, Error, Result};
use super::plan::{Group, Judge, Kind, programs_between};

/// All packets.
const ALL: u64 = 100_000;
/// Packets of each cell, which has a seed of its own: few enough for the time that a program has.
const PACKETS: u64 = 1000;
/// How long an answer may take, in milliseconds: rxe gives none in many cases, and each is waited for.
const PATIENCE: u32 = 100;

/// What to run.
pub(crate) fn groups() -> Vec<Group> {
    vec![group(1..1 + ALL / PACKETS)]
}

fn group(seeds: Range<u64>) -> Group {
    let cells = seeds.map(|seed| {
        let server = "/tmp/grant {address}";
        let client = format!(
            "/tmp/urxe/urxe fuzz {{server}} --seed {seed} --packets {PACKETS} --patience {PATIENCE}"
        );
        programs_between(format!("seed-{seed}"), ["a", "b"], "1+", server, &client)
    });
    Group {
        name: "fuzz",
        kind: Kind::Programs,
        judge: Judge::Measured,
        sides: ["rxe", "urxe"],
        ip: "v4",
        netem: "",
        lanes: 1,
        about: "packets that break the rules, sent to a program that runs on rxe",
        cells: cells.collect(),
    }
}

/// What rxe has said to all packets, and the kernel.
#[derive(Default)]
pub(crate) struct Tries {
    sum: Sum,
    crashes: Vec<String>,
    complaints: BTreeMap<String, u64>,
}

impl Tries {
    /// Has `run_job` run the groups that it is given as the job in `job`, until rxe has had all packets: in another
    /// guest, with the next seed, where one did not survive them.
    pub(crate) fn run(job: &Path, mut run_job: impl FnMut(&[Group]) -> Result<()>) -> Result<Self> {
        let mut tries = Tries::default();
        let mut next = 1;
        while tries.sum.packets < ALL {
            let seeds = next..next + (ALL - tries.sum.packets).div_ceil(PACKETS);
            let ended = run_job(&[group(seeds.clone())]);
            let survived = tries.add(&job.join("results"))?;
            match ended {
                Ok(()) => next = seeds.end,
                Err(Error::GuestDied { console }) => {
                    let seed = next + survived;
                    let said = fs::read_to_string(&console).at(&console)?;
                    let words = last_words(&said);
                    tries.crashes.push(format!("seed {seed}: {words}"));
                    next = seed + 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(tries)
    }

    /// What the last job of an earlier run said.
    pub(crate) fn of_last_job(job: &Path) -> Result<Self> {
        let mut tries = Tries::default();
        tries.add(&job.join("results"))?;
        Ok(tries)
    }

    /// Adds the results of a job; how many cells came to their end.
    fn add(&mut self, results: &Path) -> Result<u64> {
        let file = results.join("fuzz.output");
        let output = fs::read_to_string(&file).at(&file)?;
        self.sum.add(&output);
        // There is none where the kernel did not live to show it.
        let log = fs::read_to_string(results.join("fuzz.dmesg")).unwrap_or_default();
        for (what, times) in complaints(&log) {
            *self.complaints.entry(what).or_default() += times;
        }
        Ok(output.matches("== seed-").count() as u64)
    }

    /// Prints what came of it, and writes it to `page`.
    pub(crate) fn write(&self, release: &str, page: &Path) -> Result<()> {
        let mut text = self.sum.page(release);
        if !self.complaints.is_empty() {
            text.push_str("\n## What the kernel complained of\n\n| where | times |\n|---|---|\n");
        }
        for (what, times) in &self.complaints {
            let _ = writeln!(text, "| {what} | {times} |");
        }
        if !self.crashes.is_empty() {
            text.push_str("\n## Ends of the kernel\n\n");
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

/// PSNs and lengths are others each time.
fn without_numbers(text: &str) -> String {
    let mut plain = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        plain.push_str(if digits > 0 { "n" } else { "" });
        plain.push_str(&piece[digits..]);
    }
    plain
}

/// What the kernel complained of, once each: where, without the addresses.
fn complaints(log: &str) -> BTreeMap<String, u64> {
    let mut complaints = BTreeMap::new();
    for line in log.lines() {
        if let Some((_, what)) = line.split_once("WARNING: ") {
            let at = what.split(',').next().unwrap_or(what);
            *complaints.entry(at.to_owned()).or_default() += 1;
        }
    }
    complaints
}

/// What a kernel says of its end: what happened, and where.
fn last_words(console: &str) -> String {
    let line = |mark: &str| console.lines().find(|line| line.contains(mark));
    let lines = [line("BUG: "), line("RIP: ")].into_iter().flatten();
    // Without the time in front.
    let words = lines.map(|line| line.split_once("] ").map_or(line, |(_, words)| words));
    words.collect::<Vec<_>>().join(", ")
}

/// What `urxe fuzz` said in all the cells.
#[derive(Default, Debug, PartialEq, Eq)]
struct Sum {
    packets: u64,
    connections: u64,
    /// How often each rule was tried, and departed from.
    rules: BTreeMap<String, (u64, u64)>,
    /// How often something was answered that the rule does not ask for.
    departures: BTreeMap<(String, String), u64>,
}

impl Sum {
    /// Adds what `urxe fuzz` said.
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
            } else if let [Ok(tried), Ok(departed)] =
                [0, 1].map(|at| words.get(at).unwrap_or(&"").parse::<u64>())
            {
                let known = sum.rules.entry(words[2..].join(" ")).or_default();
                *known = (known.0 + tried, known.1 + departed);
            } else if let Some(departure) = line.strip_prefix("    expected ") {
                let counted = departure.rsplit_once(" times: ");
                let counted = counted.and_then(|(counted, _)| counted.rsplit_once(", "));
                if let Some((what, times)) = counted {
                    let key = (rule.to_owned(), without_numbers(what));
                    *sum.departures.entry(key).or_default() += times.parse().unwrap_or(0);
                }
            } else {
                rule = line;
            }
        }
    }

    fn page(&self, release: &str) -> String {
        let mut page = format!(
            "# Where rxe departs from the specification\n\n\
             Generated by `cargo xtask rxe --fuzz`, on Linux {release}: {} packets of `urxe fuzz`, most of which break \
             a rule, over {} connections to a program on rxe (`tests/rxe/grant`). In brackets, the sections of the \
             specification.\n\n| rule | tried | departed |\n|---|---|---|\n",
            self.packets, self.connections
        );
        for (rule, (tried, departed)) in &self.rules {
            let _ = writeln!(page, "| {rule} | {tried} | {departed} |");
        }
        page.push_str("\n## Answers that were not asked for\n\n| rule | asked, answered | times |\n|---|---|---|\n");
        for ((rule, what), times) in &self.departures {
            let _ = writeln!(page, "| {rule} | {what} | {times} |");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_s_last_words_are_found() {
        let console = "[ 7.1] BUG: kernel NULL pointer dereference\n[ 7.2] Oops\n\
                       [ 7.3] RIP: 0010:rxe_mr_copy+0x49/0x1a0\n[ 7.4] RIP: 0010:halt";
        let words = "BUG: kernel NULL pointer dereference, RIP: 0010:rxe_mr_copy+0x49/0x1a0";
        assert_eq!(last_words(console), words);
    }

    #[test]
    fn reports_are_added_up() {
        let one = "== seed-1\n\
            seed 1: 5001 packets in 700 cases, over 30 connections\n   \
            tests departed  rule\n     \
            600       12  PSN ahead: NAK PSN sequence (9.7.5.1.2)\n     \
            100        0  another queue pair: dropped (9.6.1.1.2)\n\n\
            PSN ahead: NAK PSN sequence (9.7.5.1.2)\n    \
            expected a NAK; got ACK of PSN 17, or so, 12 times: --replay 1:2, 1:3\n";
        let mut sum = Sum::default();
        sum.add(one);
        sum.add(one);
        assert_eq!((sum.packets, sum.connections), (10_002, 60));
        let ahead = "PSN ahead: NAK PSN sequence (9.7.5.1.2)";
        assert_eq!(sum.rules[ahead], (1200, 24));
        assert_eq!(sum.rules.len(), 2);
        let what = "a NAK; got ACK of PSN n, or so".to_owned();
        assert_eq!(
            sum.departures,
            BTreeMap::from([((ahead.to_owned(), what), 24)])
        );
    }
}
