//! Runs the two programs of a cell and parses their output.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::{Cell, Tool, Unit};
use super::veth::{self, Link, Veth};

/// The time limit of a run in seconds.
const LIMIT: &str = "120";

/// The time that a server has to start listening.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of retries for programs that do not retransmit lost packets.
const RETRIES: usize = 4;

/// The fixed port of the UDP program.
const UDP_PORT: u16 = 4792;

/// The paths of the programs.
pub(super) struct Programs {
    pub(super) urxe: PathBuf,
    pub(super) model: PathBuf,
    pub(super) udp: PathBuf,
    /// The namespace for clients on another host, with the link of the last cell that had one.
    host: Mutex<Option<Veth>>,
}

impl Programs {
    /// Returns the programs below the directory of build outputs; `udp` is that of
    /// `tests/rxe/udp/udp.c`.
    pub(super) fn new(target: &Path, udp: PathBuf) -> Self {
        Programs {
            urxe: target.join("release/urxe"),
            model: target.join("release/urxe-model"),
            udp,
            host: Mutex::default(),
        }
    }

    /// Returns the command of a shell in the namespace for clients on another host.
    fn host(&self, link: Link) -> Result<Command, String> {
        let mut current = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        // Another link has the same names and addresses, so it goes first.
        let host = match current.take().filter(|host| host.link() == link) {
            Some(host) => host,
            None => Veth::new(link)?,
        };
        Ok(current.insert(host).client())
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) value: f64,
    /// The CPU time of both programs in seconds.
    pub(super) cpu: f64,
}

/// Runs a cell, several times if a program may fail by packet loss, until there is a result.
/// Programs over urxe are started by the command `urxe`.
///
/// # Errors
/// The output of the programs, if there is no result.
pub(super) fn run(cell: &Cell, programs: &Programs, urxe: &Path) -> Result<Measured, String> {
    let again = if cell.tool == Tool::Model { RETRIES } else { 0 };
    repeat(again, || once(cell, programs, urxe))
}

/// Repeats an operation until it succeeds, at most `again` times, and reports each failure.
fn repeat<T>(again: usize, mut once: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    for left in (1..=again).rev() {
        match once() {
            Err(error) => eprintln!("bench: {error}\nbench: trying again, {left} times at most"),
            done => return done,
        }
    }
    once()
}

/// Runs all copies of a cell at the same time.
///
/// For one copy the result is the program's own. The averages of several copies cover different
/// intervals and cannot be added. Their bandwidth is the bytes of all copies over the time from the
/// start of the first client to the end of the last.
fn once(cell: &Cell, programs: &Programs, urxe: &Path) -> Result<Measured, String> {
    if !cell.aggregate {
        return Server::start(cell, programs, urxe)?
            .connect(cell, programs, urxe)?
            .finish(cell);
    }
    let bytes = cell
        .bytes()
        .ok_or("the command line has no number of bytes")?;
    let servers: Vec<Result<Server, String>> = (0..cell.copies)
        .map(|_| Server::start(cell, programs, urxe))
        .collect();
    let start = Instant::now();
    let pairs: Vec<Result<Pair, String>> = servers
        .into_iter()
        .map(|server| server?.connect(cell, programs, urxe))
        .collect();
    // Waits for every pair, because a running one would disturb the next cell.
    let waiting: Vec<_> = pairs
        .into_iter()
        .map(|pair| {
            let cell = cell.clone();
            thread::spawn(move || pair?.finish(&cell))
        })
        .collect();
    let mut cpu = 0.0;
    let mut failed = None;
    for thread in waiting {
        match thread.join() {
            Ok(Ok(one)) => cpu += one.cpu,
            Ok(Err(error)) => failed = Some(error),
            Err(_) => failed = Some("the thread of a pair panicked".to_owned()),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let value = bytes as f64 / f64::from(1 << 20) / seconds;
    failed.map_or(Ok(Measured { value, cpu }), Err)
}

/// A listening server.
struct Server {
    child: Child,
    port: u16,
}

struct Pair {
    server: Child,
    client: Child,
}

impl Server {
    fn start(cell: &Cell, programs: &Programs, urxe: &Path) -> Result<Self, String> {
        if let Some(link) = cell.link {
            programs.host(link)?;
        }
        static NEXT: AtomicU16 = AtomicU16::new(20_000);
        let port = match cell.tool {
            Tool::Udp | Tool::UdpTail => UDP_PORT,
            _ => NEXT.fetch_add(1, Ordering::Relaxed),
        };
        let mut child = spawn(cell, programs, urxe, port, None)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !listens(port) {
            let ended = !matches!(child.try_wait(), Ok(None));
            if ended || Instant::now() > deadline {
                let _ = child.kill();
                return Err(format!("the server does not listen: {}", output(child).1));
            }
            thread::sleep(Duration::from_millis(20));
        }
        // The server of UCX listens before it is ready.
        thread::sleep(Duration::from_millis(if cell.tool == Tool::Ucx {
            500
        } else {
            50
        }));
        Ok(Server { child, port })
    }

    fn connect(self, cell: &Cell, programs: &Programs, urxe: &Path) -> Result<Pair, String> {
        let server = match cell.link {
            Some(_) => veth::SERVER,
            None => "127.0.0.1",
        };
        let client = spawn(cell, programs, urxe, self.port, Some(server))?;
        Ok(Pair {
            server: self.child,
            client,
        })
    }
}

impl Pair {
    fn finish(self, cell: &Cell) -> Result<Measured, String> {
        // With many queue pairs each end prints more than a pipe buffers.
        let server = thread::spawn(move || output(self.server));
        let (good, text) = output(self.client);
        let (_, of_server) = server.join().unwrap_or_default();
        let value = if good {
            read(cell.tool, cell.unit, &text)
        } else {
            None
        };
        let value =
            value.ok_or_else(|| format!("{} {}\n{text}\n{of_server}", cell.name, cell.words))?;
        Ok(Measured {
            value,
            cpu: cpu(&text) + cpu(&of_server),
        })
    }
}

fn spawn(
    cell: &Cell,
    programs: &Programs,
    urxe: &Path,
    port: u16,
    host: Option<&str>,
) -> Result<Child, String> {
    let host = host.unwrap_or_default();
    let words = &cell.words;
    let urxe = urxe.display();
    let line = match cell.tool {
        Tool::Urxe | Tool::UrxeTail => {
            format!("{urxe} run --sysfs no -- {words} -F -p {port} {host}")
        }
        Tool::Udp | Tool::UdpTail => format!("{} {words} {host}", programs.udp.display()),
        Tool::Model => format!("{} {words} {port} {host}", programs.model.display()),
        Tool::Iperf if host.is_empty() => format!("iperf3 -s -1 -p {port}"),
        Tool::Iperf => format!("iperf3 -c {host} -p {port} -f m {words}"),
        Tool::Ucx if host.is_empty() => format!("ucx_perftest -p {port}"),
        Tool::Ucx => format!("ucx_perftest -p {port} {host} -w 1000 -t {words}"),
    };
    // The shell reports the CPU time in the format that `cpu` parses.
    let mut script = format!("TIMEFORMAT='cpu %3U %3S'; time timeout {LIMIT} {line}");
    if cell.loops > 0 && host.is_empty() {
        // A busy loop must not inherit the output pipe: the reader waits until all writers have
        // closed it.
        let loops = "while :; do :; done >/dev/null 2>&1 & ".repeat(cell.loops);
        script = format!("{loops}{script}; status=$?; kill $(jobs -p); exit $status");
    }
    let mut command = match cell.link {
        Some(link) if !host.is_empty() => programs.host(link)?,
        _ => Command::new("bash"),
    };
    command
        .args(["-c", &script])
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in &cell.environment {
        command.env(name, value);
    }
    if cell.tool == Tool::Ucx {
        command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo");
    }
    command.spawn().map_err(|error| format!("bash: {error}"))
}

/// Returns whether the program succeeded, and all of its output.
pub(super) fn output(mut child: Child) -> (bool, String) {
    let mut text = String::new();
    let mut errors = String::new();
    // None of these programs fills a pipe with errors, so stdout can be read first.
    if let Some(mut pipe) = child.stdout.take() {
        let _ = pipe.read_to_string(&mut text);
    }
    if let Some(mut pipe) = child.stderr.take() {
        let _ = pipe.read_to_string(&mut errors);
    }
    let good = child.wait().is_ok_and(|status| status.success());
    (good, format!("{text}\n{errors}"))
}

/// Returns whether a socket listens at a TCP port of this network namespace.
pub(super) fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            local.ends_with(&format!(":{port:04X}")) && fields.nth(1) == Some(LISTEN)
        })
    })
}

/// Returns the CPU time that the shell reported.
fn cpu(text: &str) -> f64 {
    let words = text
        .lines()
        .filter_map(|line| line.strip_prefix("cpu "))
        .flat_map(str::split_whitespace);
    words.filter_map(|word| word.parse::<f64>().ok()).sum()
}

/// Parses the result of a program.
fn read(tool: Tool, unit: Unit, text: &str) -> Option<f64> {
    match tool {
        Tool::Iperf => {
            // In units of 10^6 bits per second.
            let line = text.lines().rfind(|line| line.ends_with("receiver"))?;
            let words: Vec<_> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "Mbits/sec")?;
            let megabits: f64 = words[at.checked_sub(1)?].parse().ok()?;
            Some(megabits * 1e6 / 8.0 / f64::from(1 << 20))
        }
        Tool::Ucx => {
            let line = text.lines().rfind(|line| line.starts_with("Final:"))?;
            let column = if unit == Unit::Microseconds { 2 } else { 6 };
            line.split_whitespace().nth(column)?.parse().ok()
        }
        Tool::Urxe | Tool::UrxeTail | Tool::Udp | Tool::UdpTail | Tool::Model => {
            let row = text.lines().rev().find_map(numbers)?;
            let column = match (tool, unit) {
                (_, Unit::MibPerSecond) => 3,
                (Tool::UrxeTail, _) => 7,
                (Tool::UdpTail, _) => 5,
                _ => 4,
            };
            let value = *row.get(column)?;
            // The UDP ping-pong reports round trips.
            let is_udp = matches!(tool, Tool::Udp | Tool::UdpTail);
            let half = is_udp && unit == Unit::Microseconds;
            Some(if half { value / 2.0 } else { value })
        }
    }
}

/// Parses a row of numbers of perftest.
fn numbers(line: &str) -> Option<Vec<f64>> {
    let words = line.split_whitespace().take_while(|word| *word != "of");
    let row: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
    row.filter(|row| row.len() >= 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_retried_a_few_times() {
        for (failures, tries, worked) in [(0, 1, true), (4, 5, true), (9, 5, false)] {
            let mut tried = 0;
            let done = repeat(4, || {
                tried += 1;
                (tried > failures).then_some(()).ok_or("lost".to_owned())
            });
            assert_eq!((tried, done.is_ok()), (tries, worked));
        }
    }
}
