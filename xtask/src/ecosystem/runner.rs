//! Runs the programs of the catalogue and judges them.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::hosts::{Host, Hosts};
use super::program::{Place, Program, Ready, Run, Server};
use super::results::{Outcome, runs};

/// The time for a server to listen, and to exit after its client.
const SERVER_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which the runner checks a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The exit status of `timeout` for a command that exceeds its limit.
const TIMED_OUT: i32 = 124;
/// The number of lines of output in a report of a failure.
const REPORTED_LINES: usize = 12;

/// The environment of all runs.
pub(super) struct Runner<'a> {
    pub(super) hosts: &'a Hosts,
    pub(super) workspace: &'a Path,
    /// The directory of `urxe` and its shared objects.
    pub(super) products: PathBuf,
    /// The directory of the programs, with one subdirectory for each.
    pub(super) directory: PathBuf,
}

impl Runner<'_> {
    /// Runs all of a program.
    pub(super) fn run(&self, program: &Program) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (run, place) in runs(program) {
            let started = Instant::now();
            let result = self.run_one(program, run, place);
            // Servers that stay, and what a failed run has left.
            self.hosts.clear();
            let verdict = match (&result, run.known) {
                (Ok(_), None) => "passes".to_owned(),
                (Ok(_), Some(_)) => "passes, although a failure is known".to_owned(),
                (Err(_), Some(_)) => "fails, as known".to_owned(),
                (Err(failure), None) => format!("FAILS: {failure}"),
            };
            println!(
                "{:<12} {:<44} {:<12} {:>6.1} s  {verdict}",
                program.name,
                run.name,
                place.title(),
                started.elapsed().as_secs_f64()
            );
            outcomes.push(Outcome::new(run, place, result));
        }
        outcomes
    }

    /// Returns the line of the output with the expected text.
    fn run_one(&self, program: &Program, run: &Run, place: Place) -> Result<String, String> {
        let directory = self.directory.join(program.name);
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let server_host = self.hosts.host(0);
        let client_host = match place {
            Place::OneHost => Some(server_host),
            Place::TwoHosts => Some(self.hosts.host(1)),
            Place::Cluster => None,
        };
        let start = |host: Option<&Host>, line: &str, role: &str| {
            let mut name = format!("{} {place:?} {role}", run.name);
            name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            let line = line.replace("{server}", &server_host.address);
            self.start(host, &directory, &line, run.limit, &directory.join(name))
        };
        let server = match &run.server {
            Some(server) => {
                let mut process = start(Some(server_host), server.command, "server")?;
                wait_until_ready(server.ready, server_host, &mut process)?;
                Some((server, process))
            }
            None => None,
        };
        let client = start(client_host, run.client, "client").and_then(Process::finish);
        if let Some((server, process)) = server {
            let served = finish_server(server, process, client.is_ok());
            client.as_ref().map_err(|error| match &served {
                Ok(()) => error.clone(),
                Err(cause) => format!("{error}\nserver: {cause}"),
            })?;
            served?;
        }
        let output = client?;
        output
            .lines()
            .find(|line| line.contains(run.expected))
            .map(|line| line.trim().to_owned())
            .ok_or_else(|| format!("no {:?} in the output:\n{}", run.expected, tail(&output)))
    }

    /// Starts a line for `sh`, on a host if there is one. Its output goes to files whose names begin with `log`.
    fn start(
        &self,
        host: Option<&Host>,
        directory: &Path,
        line: &str,
        limit: u32,
        log: &Path,
    ) -> Result<Process, String> {
        let path = env::var_os("PATH").unwrap_or_default();
        let paths = [self.products.clone()]
            .into_iter()
            .chain(env::split_paths(&path))
            .chain(["/usr/sbin".into(), "/sbin".into()]);
        let path = env::join_paths(paths).map_err(|error| error.to_string())?;
        let (output, errors) = (log.with_extension("stdout"), log.with_extension("stderr"));
        let create = |path: &Path| {
            File::create(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let child = Command::new("timeout")
            .args(["--kill-after=5", &limit.to_string()])
            .args(host.into_iter().flat_map(Host::words))
            .arg("env")
            .arg("-C")
            .arg(directory)
            .args(["sh", "-c", line])
            .env("PATH", path)
            .env("WORKSPACE", self.workspace)
            .env("HOSTS", self.directory.join("hosts"))
            .stdin(Stdio::null())
            .stdout(create(&output)?)
            .stderr(create(&errors)?)
            .spawn()
            .map_err(|error| format!("timeout: {error}"))?;
        Ok(Process {
            child,
            output,
            errors,
        })
    }
}

/// A started command, with the files of its output.
struct Process {
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

impl Process {
    /// Waits for the end, and returns the output if the command succeeds without a message of urxe.
    fn finish(mut self) -> Result<String, String> {
        let status = self.child.wait().map_err(|error| error.to_string())?;
        self.judge(status)
    }

    fn judge(&self, status: ExitStatus) -> Result<String, String> {
        let read = |path: &Path| {
            let bytes = fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (output, errors) = (read(&self.output), read(&self.errors));
        if !status.success() {
            let cause = match status.code() {
                Some(TIMED_OUT) => "time limit exceeded".to_owned(),
                _ => status.to_string(),
            };
            return Err(format!("{cause}\n{}\n{}", tail(&output), tail(&errors)));
        }
        match errors.lines().find(|line| line.starts_with("urxe")) {
            Some(line) => Err(format!("message of urxe: {line}")),
            None => Ok(output),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // `timeout` passes SIGTERM on to its command.
        if let Ok(None) = self.child.try_wait() {
            let _ = Command::new("kill")
                .arg(self.child.id().to_string())
                .status();
            let _ = self.child.wait();
        }
    }
}

fn wait_until_ready(ready: Ready, host: &Host, process: &mut Process) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let is_ready = match ready {
            Ready::Tcp(port) => host.listens(port),
            Ready::ConnectionManager(port) => host.has_listener(port),
            Ready::Output(text) => {
                fs::read_to_string(&process.output).is_ok_and(|output| output.contains(text))
            }
            Ready::Seconds(seconds) => started.elapsed() >= Duration::from_secs(seconds),
        };
        if is_ready {
            return Ok(());
        }
        if let Ok(Some(status)) = process.child.try_wait() {
            let cause = process.judge(status).err().unwrap_or_default();
            return Err(format!("the server exits before it is ready: {cause}"));
        }
        if started.elapsed() > SERVER_TIMEOUT {
            return Err("the server is not ready in time".to_owned());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits for the end of a server, or terminates it if it stays or has no client.
fn finish_server(
    server: &Server,
    mut process: Process,
    client_succeeded: bool,
) -> Result<(), String> {
    let ended = |process: &mut Process| process.child.try_wait().ok().flatten();
    let timeout = match client_succeeded && !server.stays {
        true => SERVER_TIMEOUT,
        false => Duration::from_millis(500),
    };
    let started = Instant::now();
    while started.elapsed() < timeout {
        match ended(&mut process) {
            Some(status) => return process.judge(status).map(drop),
            None => thread::sleep(POLL_INTERVAL),
        }
    }
    match server.stays || !client_succeeded {
        true => Ok(()),
        false => Err("the server does not exit after its client".to_owned()),
    }
}

/// Returns the last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(REPORTED_LINES)..].join("\n")
}
