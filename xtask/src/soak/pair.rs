//! A server and its successive clients.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::usage::Usage;

/// The time limit of an undisturbed client, on a busy machine with packet loss.
const LIMIT: Duration = Duration::from_secs(120);
/// The largest message of a client, in bytes.
const LARGEST: u32 = 65_535;
/// The time for which a client is stopped.
const STOP_TIME: Duration = Duration::from_secs(3);
/// The time that a server needs to detect the end of its client.
const DISCONNECT_TIME: Duration = Duration::from_secs(5);

/// The time that a client needs to connect, with a margin.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// The last message of an rping server whose client is killed while it connects: the REP is
/// rejected for an unknown ID (reason 6 of 12.6.7.2), and rping ends.
const REFUSED: &str = "cma event RDMA_CM_EVENT_REJECTED, error 6";

/// The end of a program.
pub(super) enum Ended {
    /// The client received only right data.
    Whole,
    Killed,
    /// The client failed after a disturbance.
    Interrupted,
    /// The server ended because a connecting client was killed.
    Refused,
}

pub(super) struct Pair {
    port: u16,
    lasts: bool,
    libraries: PathBuf,
    faults: String,
    server: Child,
    client: Option<Client>,
    /// The number of clients so far.
    clients: u32,
    /// The server's resources after the warm-up.
    before: Option<Usage>,
}

struct Client {
    child: Child,
    started: Instant,
    killed: bool,
    /// Whether a failure is allowed, because of a disturbance of the server or network.
    may_fail: bool,
    go_on_at: Option<Instant>,
}

impl Pair {
    /// Starts a server. With `lasts`, neither the server nor a connecting client is killed.
    pub(super) fn start(
        port: u16,
        lasts: bool,
        libraries: &Path,
        faults: &str,
    ) -> Result<Pair, String> {
        Ok(Pair {
            lasts,
            server: server(port, libraries, faults)?,
            port,
            libraries: libraries.to_owned(),
            faults: faults.to_owned(),
            client: None,
            clients: 0,
            before: None,
        })
    }

    /// Starts a client if there is none, and returns how the last program ended.
    pub(super) fn check(&mut self) -> Result<Option<Ended>, String> {
        if let Ok(Some(status)) = self.server.try_wait() {
            let output = output_of(&mut self.server);
            self.server = server(self.port, &self.libraries, &self.faults)?;
            self.before = None;
            self.allow_failure();
            return match output.ends_with(REFUSED) && status.code().is_some() {
                true => Ok(Some(Ended::Refused)),
                false => Err(format!(
                    "a server ended unexpectedly with {status}: {output}"
                )),
            };
        }
        let Some(client) = &mut self.client else {
            self.client = Some(self.new_client()?);
            return Ok(None);
        };
        if client.go_on_at.is_some_and(|at| at <= Instant::now()) {
            client.go_on_at = None;
            signal("CONT", &client.child);
        }
        let ended = client.child.try_wait().map_err(|error| error.to_string())?;
        let late = client.started.elapsed() > LIMIT;
        let status = match ended {
            None if late => {
                let _ = client.child.kill();
                let _ = client.child.wait();
                self.client = None;
                return Err(format!(
                    "a client of port {} exceeded its time limit",
                    self.port
                ));
            }
            None => return Ok(None),
            Some(status) => status,
        };
        let (killed, may_fail) = (client.killed, client.may_fail);
        let output = output_of(&mut client.child);
        self.client = None;
        match judge(status, &output, killed, may_fail) {
            Some(ended) => Ok(Some(ended)),
            None => Err(format!("a client ended with {status}: {output}")),
        }
    }

    fn new_client(&mut self) -> Result<Client, String> {
        // Short transfers, and long ones that are often killed.
        const COUNTS: [u32; 4] = [50, 400, 5000, 1];
        const SIZES: [u32; 5] = [64, LARGEST, 4096, 23, 30_000];
        let n = self.clients as usize;
        self.clients += 1;
        let (count, size) = (COUNTS[n % COUNTS.len()], SIZES[n % SIZES.len()]);
        // No locked memory is allowed, because urxe needs none.
        let mut command = limited("--memlock=0:0", &self.libraries);
        command
            .args(["-c", "-V", "-a", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-C", &count.to_string(), "-S", &size.to_string()])
            .env("URXE_FAULTS", &self.faults);
        Ok(Client {
            child: spawn(command)?,
            started: Instant::now(),
            killed: false,
            may_fail: false,
            go_on_at: None,
        })
    }

    pub(super) fn kill_client(&mut self) {
        let settles = if self.lasts {
            CONNECT_TIME
        } else {
            Duration::ZERO
        };
        if let Some(client) = &mut self.client
            && client.started.elapsed() >= settles
        {
            client.killed = true;
            let _ = client.child.kill();
        }
    }

    pub(super) fn stop_client(&mut self) {
        if let Some(client) = &mut self.client {
            client.go_on_at = Some(Instant::now() + STOP_TIME);
            client.started += STOP_TIME;
            signal("STOP", &client.child);
        }
    }

    /// Allows the current client to fail.
    pub(super) fn allow_failure(&mut self) {
        if let Some(client) = &mut self.client {
            client.may_fail = true;
        }
    }

    /// Kills the server and starts another, unless the server lasts.
    pub(super) fn restart_server(&mut self) -> Result<(), String> {
        if self.lasts {
            return Ok(());
        }
        self.allow_failure();
        let _ = self.server.kill();
        let _ = self.server.wait();
        self.server = server(self.port, &self.libraries, &self.faults)?;
        self.before = None;
        Ok(())
    }

    /// Records the server's resources.
    pub(super) fn record_usage(&mut self) {
        self.before = Usage::of(self.server.id());
    }

    /// Ends the client and reports the server's resources. Fails if they have grown.
    pub(super) fn finish(&mut self) -> Result<String, String> {
        if let Some(mut client) = self.client.take() {
            let _ = client.child.kill();
            let _ = client.child.wait();
        }
        let Some(before) = self.before else {
            return Ok(format!("port {}: the server was restarted", self.port));
        };
        let until = Instant::now() + DISCONNECT_TIME;
        loop {
            let now = Usage::of(self.server.id()).ok_or("a server ended unexpectedly")?;
            let text = format!("port {}: {before}; at the end {now}", self.port);
            if now.is_flat(before) {
                return Ok(text);
            }
            if Instant::now() > until {
                return Err(format!("{text}: usage has grown"));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let clients = self.client.iter_mut().map(|client| &mut client.child);
        for child in clients.chain([&mut self.server]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns how a client has ended, if that end is allowed. A signal other than ours is a crash, and
/// wrong data is never allowed. rping reports errors in its output even if its exit status is 0.
fn judge(status: ExitStatus, output: &str, killed: bool, may_fail: bool) -> Option<Ended> {
    if output.contains("mismatch") {
        None
    } else if status.success() && !output.contains("failed") {
        Some(Ended::Whole)
    } else if killed {
        Some(Ended::Killed)
    } else if may_fail && status.code().is_some() {
        Some(Ended::Interrupted)
    } else {
        None
    }
}

/// Returns an rping command under a limit of `prlimit`.
pub(super) fn limited(limit: &str, libraries: &Path) -> Command {
    let mut command = Command::new("prlimit");
    command
        .args([limit, "rping"])
        .env("LD_LIBRARY_PATH", libraries);
    command
}

pub(super) fn server(port: u16, libraries: &Path, faults: &str) -> Result<Child, String> {
    let mut command = Command::new("rping");
    command
        .env("LD_LIBRARY_PATH", libraries)
        .args(["-s", "-P", "-a", "127.0.0.1", "-p", &port.to_string()])
        // The size of the server's buffer for the client's data.
        .args(["-S", &LARGEST.to_string()])
        .env("URXE_FAULTS", faults);
    let child = spawn(command)?;
    // Gives the server time to listen, because the client's retries are limited.
    thread::sleep(Duration::from_millis(300));
    Ok(child)
}

pub(super) fn spawn(mut command: Command) -> Result<Child, String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            format!(
                "cannot start {:?} ({error}): apt-get install rdmacm-utils",
                command.get_program()
            )
        })
}

/// Returns the output of a program that has ended.
pub(super) fn output_of(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut text);
    }
    text.trim().replace('\n', "; ")
}

fn signal(name: &str, child: &Child) {
    let _ = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status();
}
