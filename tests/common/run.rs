//! Runs programs so that a test can neither hang nor lose what they said.

use std::fmt;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a waiting test looks.
pub const LOOK: Duration = Duration::from_millis(5);

/// A program under way. Dropping it kills it and whatever it started.
pub struct Running {
    name: String,
    child: Child,
    stdout: Said,
    stderr: Said,
}

/// What a program has said so far in one of its pipes, and the thread that reads it.
struct Said {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// What came of a program.
pub struct Finished {
    name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Whether it was killed for taking too long.
    pub timed_out: bool,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Running {
    /// Starts `command` in a process group of its own.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: impl Into<String>, mut command: Command) -> Self {
        let name = name.into();
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} could not be started: {error}\n{command:?}"));
        // Read at once and to the end, lest a full pipe stop the program.
        let stdout = Said::collect(child.stdout.take().expect("it is a pipe"));
        let stderr = Said::collect(child.stderr.take().expect("it is a pipe"));
        Self {
            name,
            child,
            stdout,
            stderr,
        }
    }

    /// The process's identity, which is also its group's.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program is still under way.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether the program has said this on its standard output so far.
    pub fn has_said(&self, text: &str) -> bool {
        self.stdout.so_far().contains(text)
    }

    /// What the program has said on its standard output so far.
    pub fn said(&self) -> String {
        self.stdout.so_far()
    }

    /// Sends a signal, by its name, to the program alone.
    pub fn signal(&self, signal: &str) {
        send_signal(signal, &self.id().to_string());
    }

    /// Kills the program and whatever it started, with SIGKILL.
    pub fn kill_group(&self) {
        send_signal("KILL", &format!("-{}", self.id()));
    }

    /// Waits for the end. What takes longer than `limit` is killed and marked as such.
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
            thread::sleep(LOOK);
        };
        let status = self
            .child
            .wait()
            .unwrap_or_else(|error| panic!("{}: cannot be waited for: {error}", self.name));
        if !timed_out {
            // A descendant that lives on would hold the pipes open.
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
    /// Passes the result on if the program ended with exit status 0.
    ///
    /// # Panics
    /// Otherwise, showing everything that it said.
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
            ", killed for taking too long"
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

impl Said {
    fn collect(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut piece = [0; 4096];
            // What came before an error is worth showing; the error itself means the end.
            while let Ok(len @ 1..) = pipe.read(&mut piece) {
                collected
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend_from_slice(&piece[..len]);
            }
        });
        Said {
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
    // The process may have ended meanwhile; then there is nothing to signal.
    let _ = Command::new("kill")
        .args(["-s", signal, "--", to])
        .stderr(Stdio::null())
        .status();
}
