//! `cargo xtask bench --objects`: time and memory of objects, and bursts of connections.
//!
//! `benches/objects.c` creates 100,000 objects of each kind. rdma-core's `cmtime` requests many
//! connections at once.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::page;
use crate::release;

/// The number of objects of each kind.
const OBJECTS: u32 = 100_000;

/// The numbers of connections that are requested at once.
const AT_ONCE: [u32; 3] = [1000, 4000, 10_000];

/// The number of runs of each burst, of which the median is reported.
const ROUNDS: usize = 3;

/// The name of the service of `cmtime`, RDMA_PS_TCP at port 7471, in /proc/net/unix.
const SERVICE: &str = "cm/listen/1061d2f/";

/// The time that a server has to start listening.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The lines around the tables in the page.
const BEGIN: &str = "<!-- Objects: written by `cargo xtask bench --objects --write`. -->";
const END: &str = "<!-- End of the objects. -->";

/// A kind of objects.
struct Kind {
    /// The argument of `benches/objects.c`.
    argument: &'static str,
    name: &'static str,
    /// The number of objects in one process: limited by queue pair numbers, and for connections by
    /// descriptors.
    per_process: u32,
}

const KINDS: [Kind; 5] = [
    Kind {
        argument: "mr",
        name: "memory region of 4096 bytes",
        per_process: OBJECTS,
    },
    Kind {
        argument: "cq",
        name: "completion queue of 15 entries",
        per_process: OBJECTS,
    },
    Kind {
        argument: "qp",
        name: "queue pair, queues of 16 entries",
        per_process: OBJECTS / 2,
    },
    Kind {
        argument: "connected",
        name: "the same, connected",
        per_process: OBJECTS / 2,
    },
    Kind {
        argument: "connection",
        name: "connection of the CM, both ends",
        per_process: OBJECTS / 10,
    },
];

/// The time and memory of one object.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    microseconds: f64,
    bytes: f64,
}

/// The time of a connection in a burst, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Burst {
    resolve: f64,
    connect: f64,
    disconnect: f64,
}

/// Measures, prints the tables and, if `write`, writes them to the page. Returns true.
pub(super) fn run(workspace: &Path, target: &Path, write: bool) -> Result<bool, String> {
    let program = release::build_c("objects", workspace, target)?;
    let urxe = target.join("release/urxe");
    let mut text =
        String::from("| 100,000 objects, each | us | bytes | processes |\n|---|---:|---:|---:|\n");
    for kind in &KINDS {
        eprintln!("objects: {}", kind.name);
        let cost = cost(&program, kind)?;
        let processes = OBJECTS.div_ceil(kind.per_process);
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.0} | {processes} |",
            kind.name, cost.microseconds, cost.bytes
        );
    }
    text.push_str(
        "\n| connections at once | resolve, us | connect, us | disconnect, us |\n\
         |---:|---:|---:|---:|\n",
    );
    for count in AT_ONCE {
        eprintln!("objects: {count} connections at once");
        let bursts: Result<Vec<Burst>, String> = (0..ROUNDS).map(|_| burst(&urxe, count)).collect();
        let median = median(bursts?);
        let _ = writeln!(
            text,
            "| {count} | {:.0} | {:.0} | {:.0} |",
            median.resolve, median.connect, median.disconnect
        );
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

/// A process that is killed when the value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates the objects of a kind, in several processes one after another, and returns the mean
/// cost. All objects exist until the last one is created.
fn cost(program: &Path, kind: &Kind) -> Result<Cost, String> {
    let mut processes = Vec::new();
    let mut costs = Vec::new();
    for number in 0..OBJECTS.div_ceil(kind.per_process) {
        let child = Command::new(program)
            .arg(kind.argument)
            .arg(kind.per_process.to_string())
            .arg(number.to_string())
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut process = Process(child);
        let mut line = String::new();
        if let Some(output) = process.0.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| format!("{}: {error}", kind.argument))?;
        }
        costs.push(cost_of(&line).ok_or_else(|| format!("{}: no result", kind.argument))?);
        processes.push(process);
    }
    let count = costs.len() as f64;
    Ok(Cost {
        microseconds: costs.iter().map(|cost| cost.microseconds).sum::<f64>() / count,
        bytes: costs.iter().map(|cost| cost.bytes).sum::<f64>() / count,
    })
}

/// Parses a line of `benches/objects.c`.
fn cost_of(line: &str) -> Option<Cost> {
    let mut fields = line.split_whitespace().skip(2);
    Some(Cost {
        microseconds: fields.next()?.parse().ok()?,
        bytes: fields.next()?.parse().ok()?,
    })
}

/// Requests `count` connections at once with `cmtime`.
fn burst(urxe: &Path, count: u32) -> Result<Burst, String> {
    let cmtime = |arguments: &[&str]| {
        Command::new(urxe)
            .args(["run", "--", "cmtime"])
            .args(arguments)
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map(Process)
            .map_err(|error| format!("{}: {error}", urxe.display()))
    };
    let mut server = cmtime(&["-b", "127.0.0.1"])?;
    let deadline = Instant::now() + START_TIMEOUT;
    let listens =
        || fs::read_to_string("/proc/net/unix").is_ok_and(|sockets| sockets.contains(SERVICE));
    while !listens() {
        if !matches!(server.0.try_wait(), Ok(None)) || Instant::now() > deadline {
            return Err("cmtime: the server does not listen".to_owned());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut client = cmtime(&["-s", "127.0.0.1", "-c", &count.to_string()])?;
    let mut text = String::new();
    if let Some(mut output) = client.0.stdout.take() {
        output
            .read_to_string(&mut text)
            .map_err(|error| format!("cmtime: {error}"))?;
    }
    burst_of(&text).ok_or_else(|| format!("cmtime -c {count} failed:\n{text}"))
}

/// Parses the output of `cmtime`: a line for each step, with the time of a connection at its end.
fn burst_of(text: &str) -> Option<Burst> {
    let step = |name: &str| -> Option<f64> {
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with(name) && line.contains(':'))?;
        line.split_whitespace().last()?.parse().ok()
    };
    Some(Burst {
        resolve: step("resolve addr")?,
        connect: step("connect ")?,
        disconnect: step("disconnect ")?,
    })
}

/// Returns the median of each step.
fn median(bursts: Vec<Burst>) -> Burst {
    let of = |step: fn(&Burst) -> f64| {
        let mut values: Vec<f64> = bursts.iter().map(step).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Burst {
        resolve: of(|burst| burst.resolve),
        connect: of(|burst| burst.connect),
        disconnect: of(|burst| burst.disconnect),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_parsed() {
        let cost = cost_of("mr 100000 1.23 376\n").unwrap();
        assert_eq!((cost.microseconds, cost.bytes), (1.23, 376.0));
        assert_eq!(cost_of(""), None);
    }

    #[test]
    fn burst_is_parsed() {
        let text = "connecting\ndisconnecting\n\
                    step              total ms     max ms     min us  us / conn\n\
                    resolve addr :       65.97       9.05      38.00      65.97\n\
                    connect      :       70.52      66.35    4838.00      70.52\n\
                    disconnect   :       21.26      14.48     225.00      21.26\n";
        let burst = burst_of(text).unwrap();
        let steps = (burst.resolve, burst.connect, burst.disconnect);
        assert_eq!(steps, (65.97, 70.52, 21.26));
        assert_eq!(burst_of("connecting\n"), None);
    }
}
