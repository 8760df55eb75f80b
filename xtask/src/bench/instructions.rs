//! `cargo xtask bench --instructions`: user-space instructions of small operations.
//!
//! valgrind's callgrind counts the instructions of the thread of a client that calls the verbs. Two
//! runs with different numbers of operations are subtracted, so that connecting does not count. An
//! empty poll and a round trip repeat to 1%. A polled SEND and a polled receive vary by several
//! percent on a busy machine, so these are measured several times, and are not checked.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::callgrind::{self, Layers};
use super::{page, pair};
use crate::outcome::Outcome;
use crate::packages;
use crate::release::{self, succeed};
use crate::test_log::TestLog;

/// The step of `cargo xtask test`.
pub(crate) const NAME: &str = "instructions";

/// The programs that are needed.
const PROGRAMS: [&str; 2] = ["valgrind", "gcc"];

/// The numbers of operations of the two runs.
const OPERATIONS: [u32; 2] = [200, 2200];

/// The number of times that an operation is measured: the result is the median. An operation that
/// repeats is measured again only if it exceeds the record, and the result is the least.
const ROUNDS: usize = 3;

/// The part by which an operation that repeats may exceed the recorded number of instructions.
const TOLERANCE: f64 = 0.03;

/// The time that a server has to start listening.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The lines around the tables in the page.
const BEGIN: &str = "<!-- Instructions: written by `cargo xtask bench --instructions --write`. -->";
const END: &str = "<!-- End of the instructions. -->";

/// A measured operation.
struct Operation {
    name: &'static str,
    program: Program,
    /// The largest number of instructions that is aimed for.
    goal: f64,
    /// Whether the number repeats to much less than [`TOLERANCE`], so that it can be checked.
    repeats: bool,
}

impl Operation {
    fn is_empty_poll(&self) -> bool {
        matches!(
            self.program,
            Program::Polled("empty") | Program::PolledInRust("empty")
        )
    }
}

enum Program {
    /// `ibv_rc_pingpong -e -s 64`, with delayed ACKs: the number of waits depends on timing.
    Pingpong,
    /// `benches/polled.c` in its mode `events`: two posts, two completions, two waits for an event.
    RoundTrip,
    /// `benches/polled.c` in this mode.
    Polled(&'static str),
    /// `benches/polled.rs` in this mode: the Rust API.
    PolledInRust(&'static str),
}

/// An empty poll precedes the polled operations of the same interface: its cost is subtracted from
/// theirs, since the number of their empty polls varies.
const MEASURED: [Operation; 8] = [
    Operation {
        name: "empty poll",
        program: Program::Polled("empty"),
        goal: 150.0,
        repeats: true,
    },
    Operation {
        name: "SEND, polled",
        program: Program::Polled("send"),
        goal: 2000.0,
        repeats: false,
    },
    Operation {
        name: "receive, polled",
        program: Program::Polled("receive"),
        goal: 2000.0,
        repeats: false,
    },
    Operation {
        name: "round trip, events",
        program: Program::RoundTrip,
        goal: 5000.0,
        repeats: true,
    },
    Operation {
        name: "round trip, ibv_rc_pingpong -e",
        program: Program::Pingpong,
        goal: 5000.0,
        repeats: false,
    },
    Operation {
        name: "Rust: empty poll",
        program: Program::PolledInRust("empty"),
        goal: 150.0,
        repeats: false,
    },
    Operation {
        name: "Rust: SEND, polled",
        program: Program::PolledInRust("send"),
        goal: 2000.0,
        repeats: false,
    },
    Operation {
        name: "Rust: receive, polled",
        program: Program::PolledInRust("receive"),
        goal: 2000.0,
        repeats: false,
    },
];

/// The result of one run of a client.
struct Run {
    layers: Layers,
    empty_polls: f64,
}

/// Counts the instructions as a step of the check. In a process of its own, which enters a network
/// namespace.
pub(crate) fn step() -> Outcome {
    println!("\nxtask: {NAME}: instructions of small operations, under valgrind");
    let started = Instant::now();
    let mut log = TestLog::default();
    let missing = PROGRAMS
        .iter()
        .find(|name| packages::find_program(name).is_none());
    let problem = match missing {
        Some(program) if env::var("CI").as_deref() != Ok("true") => {
            log.left_out.push(format!("{NAME}: needs {program}"));
            None
        }
        Some(program) => Some(format!("needs {program}")),
        None => count_in_child().err(),
    };
    Outcome {
        step: NAME,
        problem,
        took: started.elapsed(),
        log,
    }
}

fn count_in_child() -> Result<(), String> {
    let this = env::current_exe().map_err(|error| format!("own path: {error}"))?;
    succeed(Command::new(this).args(["bench", "--instructions", "--quick"]))
        .map_err(|_| "an operation takes 3% more instructions, or cannot be measured".to_owned())
}

/// What to do with the numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Print the tables, and compare with the page.
    Report,
    /// Write the tables to the page.
    Write,
    /// Measure only the operations that repeat, and compare them with the page.
    Check,
}

/// Measures operations. Returns whether none that repeats takes more than the page records.
pub(super) fn run(workspace: &Path, target: &Path, task: Task) -> Result<bool, String> {
    let polled = release::build_c("polled", workspace, target)?;
    release::build(&["urxe-bench"], workspace, target)?;
    let bench = Bench {
        urxe: target.join("release/urxe"),
        polled,
        output: target.join("bench/callgrind.out"),
        processors: processors(),
    };
    let page = workspace.join("docs/PERFORMANCE.md");
    let error = |error| format!("{}: {error}", page.display());
    let text = fs::read_to_string(&page).map_err(error)?;
    let (before, recorded, after) = page::sections(&text, BEGIN, END)?;
    let mut measured: Vec<Layers> = Vec::new();
    let mut empty_poll = None;
    let mut is_good = true;
    for (port, operation) in (19_800..).zip(&MEASURED) {
        if task == Task::Check && !operation.repeats {
            continue;
        }
        let then = recorded_total(recorded, operation.name).unwrap_or(f64::INFINITY);
        let most = then * (1.0 + TOLERANCE);
        let mut rounds: Vec<Layers> = Vec::new();
        let is_done = |last: &Layers| operation.repeats && total(last) <= most;
        while rounds.len() < ROUNDS && !rounds.last().is_some_and(is_done) {
            let runs = OPERATIONS.map(|count| bench.count(operation, count, port));
            let [few, many] = runs;
            let empty_poll = empty_poll.filter(|_| !operation.is_empty_poll());
            rounds.push(difference(
                &few?,
                &many?,
                empty_poll.map(|at: usize| &measured[at]),
            ));
        }
        rounds.sort_by(|a, b| total(a).total_cmp(&total(b)));
        // Other load on the machine only adds instructions, as for retransmissions.
        let index = if operation.repeats {
            0
        } else {
            rounds.len() / 2
        };
        let layers = rounds.swap_remove(index);
        let now = total(&layers);
        eprintln!(
            "instructions: {}: {now:.0}, and {then:.0} in the page",
            operation.name
        );
        is_good &= !operation.repeats || now <= most;
        if operation.is_empty_poll() {
            empty_poll = Some(measured.len());
        }
        measured.push(layers);
    }
    if task == Task::Check {
        return Ok(is_good);
    }
    let tables = tables(&measured);
    println!("{tables}");
    if task == Task::Write {
        let text = format!("{before}{BEGIN}\n\n{tables}\n{END}{after}");
        fs::write(&page, text).map_err(error)?;
        return Ok(true);
    }
    Ok(is_good)
}

struct Bench {
    urxe: PathBuf,
    polled: PathBuf,
    output: PathBuf,
    /// The processors of the client and of a server that polls.
    processors: [usize; 2],
}

impl Bench {
    /// Runs a server and a client with `count` operations.
    fn count(&self, operation: &Operation, count: u32, port: u16) -> Result<Run, String> {
        let program = match operation.program {
            Program::Pingpong => format!("ibv_rc_pingpong -e -s 64 -g 0 -n {count} -p {port}"),
            Program::RoundTrip => format!("{} events {count} {port}", self.polled.display()),
            Program::Polled(mode) => format!("{} {mode} {count} {port}", self.polled.display()),
            Program::PolledInRust(mode) => {
                let program = self.urxe.with_file_name("urxe-polled");
                format!("{} {mode} {count} {port}", program.display())
            }
        };
        let [client, other] = self.processors;
        // The server of the round trips shares the client's processor at the lowest priority: each
        // packet wakes the client at once. So each completion takes a wait of its own, and the
        // count does not depend on timing. A server that polls needs a processor of its own.
        let (place, client_place) = match operation.program {
            // Wherever the scheduler places them, as users run it.
            Program::Pingpong => (String::new(), String::new()),
            Program::RoundTrip => (
                format!("taskset -c {client} chrt --idle 0"),
                format!("taskset -c {client}"),
            ),
            Program::Polled(_) | Program::PolledInRust(_) => (
                format!("taskset -c {other}"),
                format!("taskset -c {client}"),
            ),
        };
        let collected = match operation.program {
            Program::Pingpong => "",
            _ => "--toggle-collect='*measured_*'",
        };
        let urxe = format!("{} run --sysfs no --", self.urxe.display());
        let mut server = shell(&format!("exec {place} {urxe} {program}"))?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !pair::listens(port) {
            let ended = !matches!(server.try_wait(), Ok(None));
            if ended || Instant::now() > deadline {
                let _ = server.kill();
                return Err(format!(
                    "the server does not listen: {}",
                    pair::output(server).1
                ));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let callgrind = format!(
            "valgrind --tool=callgrind --separate-threads=yes {collected} \
             --callgrind-out-file={}",
            self.output.display()
        );
        let client = shell(&format!(
            "exec {client_place} timeout 120 {urxe} {callgrind} {program} 127.0.0.1"
        ))?;
        let (has_succeeded, text) = pair::output(client);
        if !has_succeeded {
            let _ = server.kill();
        }
        let (server_succeeded, of_server) = pair::output(server);
        if !has_succeeded || !server_succeeded {
            return Err(format!("{program}\n{text}\n{of_server}"));
        }
        // Thread 1 is the one that runs `main`.
        let file = self.output.with_extension("out-01");
        let profile =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let empty = text.lines().find_map(|line| line.strip_prefix("empty "));
        Ok(Run {
            layers: callgrind::layers(&profile),
            empty_polls: empty.and_then(|count| count.parse().ok()).unwrap_or(0.0),
        })
    }
}

fn shell(line: &str) -> Result<Child, String> {
    Command::new("sh")
        .args(["-c", line])
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("sh: {error}"))
}

/// Returns two processors that this process may use; the same one twice if there is only one.
fn processors() -> [usize; 2] {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap_or_default();
    let allowed: Vec<usize> = list
        .trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect();
    let first = allowed.first().copied().unwrap_or(0);
    [first, allowed.get(1).copied().unwrap_or(first)]
}

/// Returns the instructions of one operation, without those of the empty polls.
fn difference(few: &Run, many: &Run, empty_poll: Option<&Layers>) -> Layers {
    let operations = f64::from(OPERATIONS[1] - OPERATIONS[0]);
    let empty_polls = (many.empty_polls - few.empty_polls) / operations;
    let of = |layers: &Layers, layer: &str| layers.get(layer).copied().unwrap_or(0.0);
    let layer = |layer: &String| {
        let all = (of(&many.layers, layer) - of(&few.layers, layer)) / operations;
        let empty = empty_poll.map_or(0.0, |poll| empty_polls * of(poll, layer));
        (layer.clone(), all - empty)
    };
    many.layers.keys().map(layer).collect()
}

fn total(layers: &Layers) -> f64 {
    layers.values().sum()
}

/// Returns the tables in Markdown: the totals, and the layers of each operation.
fn tables(measured: &[Layers]) -> String {
    let mut text = String::from("| | instructions | goal | |\n|---|---:|---:|---|\n");
    for (operation, layers) in MEASURED.iter().zip(measured) {
        let (total, goal) = (total(layers), operation.goal);
        let met = if total <= goal { "met" } else { "short" };
        let _ = writeln!(
            text,
            "| {} | {total:.0} | {goal:.0} | {met} |",
            operation.name
        );
    }
    let mut names: Vec<&String> = measured.iter().flat_map(Layers::keys).collect();
    names.sort();
    names.dedup();
    let of = |layers: &Layers, name: &String| layers.get(name).copied().unwrap_or(0.0);
    // The dynamic linker and the like take part in connecting only.
    names.retain(|name| measured.iter().any(|layers| of(layers, name).abs() >= 1.0));
    let _ = writeln!(
        text,
        "\n| layer | {} |\n|---|{}",
        MEASURED.map(|operation| operation.name).join(" | "),
        "---:|".repeat(MEASURED.len())
    );
    for name in names {
        let counts = measured.iter().map(|layers| of(layers, name));
        let counts: Vec<String> = counts.map(|count| format!("{count:.0}")).collect();
        let _ = writeln!(text, "| {name} | {} |", counts.join(" | "));
    }
    text
}

/// Returns the number of instructions that the page has for an operation.
fn recorded_total(tables: &str, name: &str) -> Option<f64> {
    let line = tables
        .lines()
        .find(|line| line.starts_with(&format!("| {name} |")))?;
    line.split('|').nth(2)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(layers: &[(&str, f64)], empty_polls: f64) -> Run {
        let layers = layers
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        Run {
            layers: layers.collect(),
            empty_polls,
        }
    }

    #[test]
    fn setup_and_empty_polls_do_not_count() {
        let poll = run(&[("urxe_net", 10.0)], 0.0).layers;
        let few = run(&[("urxe_net", 5000.0), ("std", 70.0)], 20.0);
        let many = run(&[("urxe_net", 105_000.0), ("std", 2070.0)], 4020.0);
        let layers = difference(&few, &many, Some(&poll));
        assert_eq!(layers["urxe_net"], 50.0 - 2.0 * 10.0);
        assert_eq!(layers["std"], 1.0);
    }

    #[test]
    fn recorded_totals_are_read_back() {
        let layers = run(&[("urxe_net", 1234.0), ("std", 1.0)], 0.0).layers;
        let tables = tables(&vec![layers; MEASURED.len()]);
        let page = format!("# Page\n{BEGIN}\n{tables}{END}\nmore\n");
        let (before, recorded, after) = page::sections(&page, BEGIN, END).unwrap();
        assert_eq!((before, after), ("# Page\n", "\nmore\n"));
        for operation in &MEASURED {
            assert_eq!(recorded_total(recorded, operation.name), Some(1235.0));
        }
        assert_eq!(recorded_total(recorded, "nothing"), None);
    }
}
