//! A server, and the clients that it has one after the other.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::usage::Usage;

/// How long a client may take that nobody disturbs; packets are lost, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// The most that a client sends at once.
const LARGEST: u32 = 65_535;
/// How long one is stopped.
const STOPPED: Duration = Duration::from_secs(3);
/// How long a server takes to notice that its client has ended.
const CALM: Duration = Duration::from_secs(5);

/// How long a client takes to connect, generously.
const SETTLED: Duration = Duration::from_secs(1);
/// What rping's server says last, which ends as a whole, when a client is killed while it connects: its reply is
/// rejected for an ID that nobody has (reason 6 of 12.6.7.2).
const REFUSED: &str = "cma event RDMA_CM_EVENT_REJECTED, error 6";

/// How a client has ended.
pub(super) enum Ended {
    /// All that it got was right.
    Whole,
    Killed,
    /// With an error, and there was reason for one.
    Interrupted,
    /// It was the server, whose answer to a client's request nobody wanted any more.
    Refused,
}

pub(super) struct Pair {
    port: u16,
    lasts: bool,
    libraries: PathBuf,
    faults: String,
    server: Child,
    client: Option<Client>,
    /// How many clients there were.
    clients: u32,
    /// What the server held when it was warm.
    before: Option<Usage>,
}

struct Client {
    child: Child,
    started: Instant,
    killed: bool,
    /// It may fail, for what was done to its server or its network.
    excused: bool,
    go_on_at: Option<Instant>,
}

impl Pair {
    /// Starts a server. One that `lasts` is not killed, nor are its clients while they connect.
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

    /// Starts a client where there is none, and says how the last one has ended.
    pub(super) fn look(&mut self) -> Result<Option<Ended>, String> {
        if let Ok(Some(status)) = self.server.try_wait() {
            let said = said(&mut self.server);
            self.server = server(self.port, &self.libraries, &self.faults)?;
            self.before = None;
            self.excuse();
            return match said.ends_with(REFUSED) && status.code().is_some() {
                true => Ok(Some(Ended::Refused)),
                false => Err(format!("a server ended by itself, with {status}: {said}")),
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
                return Err(format!("a client of port {} came to no end", self.port));
            }
            None => return Ok(None),
            Some(status) => status,
        };
        let (killed, excused) = (client.killed, client.excused);
        let said = said(&mut client.child);
        self.client = None;
        match judge(status, &said, killed, excused) {
            Some(ended) => Ok(Some(ended)),
            None => Err(format!("a client ended with {status}: {said}")),
        }
    }

    fn new_client(&mut self) -> Result<Client, String> {
        // Short ones, and long ones that are often killed.
        const COUNTS: [u32; 4] = [50, 400, 5000, 1];
        const SIZES: [u32; 5] = [64, LARGEST, 4096, 23, 30_000];
        let n = self.clients as usize;
        self.clients += 1;
        let (count, size) = (COUNTS[n % COUNTS.len()], SIZES[n % SIZES.len()]);
        // No memory may be locked: none is.
        let mut command = limited("--memlock=0:0", &self.libraries);
        command
            .args(["-c", "-V", "-a", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-C", &count.to_string(), "-S", &size.to_string()])
            .env("URXE_FAULTS", &self.faults);
        Ok(Client {
            child: spawn(command)?,
            started: Instant::now(),
            killed: false,
            excused: false,
            go_on_at: None,
        })
    }

    pub(super) fn kill_client(&mut self) {
        let settles = if self.lasts { SETTLED } else { Duration::ZERO };
        if let Some(client) = &mut self.client
            && client.started.elapsed() >= settles
        {
            client.killed = true;
            let _ = client.child.kill();
        }
    }

    pub(super) fn stop_client(&mut self) {
        if let Some(client) = &mut self.client {
            client.go_on_at = Some(Instant::now() + STOPPED);
            client.started += STOPPED;
            signal("STOP", &client.child);
        }
    }

    /// What is under way may fail.
    pub(super) fn excuse(&mut self) {
        if let Some(client) = &mut self.client {
            client.excused = true;
        }
    }

    /// Kills the server and starts another, unless it is the one that lasts.
    pub(super) fn restart_server(&mut self) -> Result<(), String> {
        if self.lasts {
            return Ok(());
        }
        self.excuse();
        let _ = self.server.kill();
        let _ = self.server.wait();
        self.server = server(self.port, &self.libraries, &self.faults)?;
        self.before = None;
        Ok(())
    }

    /// Notes what the server holds.
    pub(super) fn count(&mut self) {
        self.before = Usage::of(self.server.id());
    }

    /// Ends the client, and says what the server holds; an error where it is more than before.
    pub(super) fn finish(&mut self) -> Result<String, String> {
        if let Some(mut client) = self.client.take() {
            let _ = client.child.kill();
            let _ = client.child.wait();
        }
        let Some(before) = self.before else {
            return Ok(format!("port {}: the server is a new one", self.port));
        };
        let until = Instant::now() + CALM;
        loop {
            let now = Usage::of(self.server.id()).ok_or("a server ended by itself")?;
            let text = format!("port {}: {before}; at the end {now}", self.port);
            if now.is_flat(before) {
                return Ok(text);
            }
            if Instant::now() > until {
                return Err(format!("{text}: that is more"));
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

/// How a client has ended, if it may have ended so. A signal that nobody sent is a crash, and a wrong byte
/// has no excuse. rping says of an error, and may end with 0 all the same.
fn judge(status: ExitStatus, said: &str, killed: bool, excused: bool) -> Option<Ended> {
    if said.contains("mismatch") {
        None
    } else if status.success() && !said.contains("failed") {
        Some(Ended::Whole)
    } else if killed {
        Some(Ended::Killed)
    } else if excused && status.code().is_some() {
        Some(Ended::Interrupted)
    } else {
        None
    }
}

/// rping, with a limit of `prlimit`'s.
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
        // It reads what a client offers into memory of this size.
        .args(["-S", &LARGEST.to_string()])
        .env("URXE_FAULTS", faults);
    let child = spawn(command)?;
    // The client asks again where nobody listens yet, but only for so long.
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
                "{:?} could not be started ({error}): apt-get install rdmacm-utils",
                command.get_program()
            )
        })
}

/// What a program has said that has ended.
pub(super) fn said(child: &mut Child) -> String {
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
