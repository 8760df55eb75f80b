//! Runs programs with a time limit and captured output.

use std::fmt;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The polling interval of waiting tests.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running program. Dropping the value kills the process group of the program, if it still runs.
pub struct Running {
    name: String,
    child: Child,
    stdout: Captured,
    stderr: Captured,
}

/// The output of a program so far on one pipe, and the thread that reads it.
struct Captured {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// The result of a program.
pub struct Finished {
    name: String,
    /// The exit status.
    pub status: ExitStatus,
    /// Whether the program was killed at its time limit.
    pub timed_out: bool,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl Running {
    /// Starts `command` in a process group of its own.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(name: impl Into<String>, mut command: Command) -> Self {
        let name = name.into();
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}\n{command:?}"));
        // Read continuously, because a full pipe would block the program.
        let stdout = Captured::collect(child.stdout.take().expect("it is a pipe"));
        let stderr = Captured::collect(child.stderr.take().expect("it is a pipe"));
        Self {
            name,
            child,
            stdout,
            stderr,
        }
    }

    /// Returns the process ID, which is also the process group ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the program is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns whether the standard output so far contains `text`.
    pub fn has_printed(&self, text: &str) -> bool {
        self.stdout.so_far().contains(text)
    }

    /// Returns the standard output so far.
    pub fn printed(&self) -> String {
        self.stdout.so_far()
    }

    /// Sends a signal, given by its name, to the program but not to its descendants.
    pub fn signal(&self, signal: &str) {
        send_signal(signal, &self.id().to_string());
    }

    /// Sends SIGKILL to the program's process group, that is, to the program and its descendants.
    pub fn kill_group(&self) {
        send_signal("KILL", &format!("-{}", self.id()));
    }

    /// Waits until the program ends. After `limit`, kills it and sets [`Finished::timed_out`].
    pub fn finish(mut self, limit: Duration) -> Finished {
        let deadline = Instant::now() + limit;
        let timed_out = loop {
            if !self.is_running() {
                break false;
            }
            if Instant::now() >= deadline {
                self.kill_group();
                break true;
            }
            thread::sleep(POLL_INTERVAL);
        };
        let status = self
            .child
            .wait()
            .unwrap_or_else(|error| panic!("cannot wait for {}: {error}", self.name));
        if !timed_out {
            // A surviving descendant would keep the pipes open.
            self.kill_group();
        }
        Finished {
            name: self.name.clone(),
            status,
            timed_out,
            stdout: self.stdout.all(),
            stderr: self.stderr.all(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill_group();
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    /// Returns the result if the exit status is 0.
    ///
    /// # Panics
    /// Otherwise, with the output.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!(self.status.success() && !self.timed_out, "{self}");
        self
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            status,
            stdout,
            stderr,
            timed_out,
        } = self;
        let killed = if *timed_out {
            ", killed at its time limit"
        } else {
            ""
        };
        writeln!(f, "{name}: {status}{killed}")?;
        writeln!(f, "--- its standard output\n{stdout}")?;
        write!(f, "--- its standard error\n{stderr}")
    }
}

/// Runs `command` to its end.
pub fn run(name: &str, command: Command, limit: Duration) -> Finished {
    Running::start(name, command).finish(limit)
}

impl Captured {
    fn collect(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut piece = [0; 4096];
            // An error ends the output; what was read before it is kept.
            while let Ok(len @ 1..) = pipe.read(&mut piece) {
                collected
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend_from_slice(&piece[..len]);
            }
        });
        Captured {
            bytes,
            reader: Some(reader),
        }
    }

    fn so_far(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn all(&mut self) -> String {
        let _ = self.reader.take().map(JoinHandle::join);
        self.so_far()
    }
}

fn send_signal(signal: &str, to: &str) {
    // Fails if the process has ended.
    let _ = Command::new("kill")
        .args(["-s", signal, "--", to])
        .stderr(Stdio::null())
        .status();
}
