//! Runs a pair of `ibv_rc_pingpong` or its variants for other services.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::run::{Finished, Running};
use super::runner::Runner;
use super::tcp::{self, free_port};

/// One side of a pair.
#[derive(Clone)]
pub struct Side {
    /// The runner that starts it.
    pub runner: Runner,
    /// The device.
    pub device: String,
    /// The GID index.
    pub gid_index: u32,
    /// Additional environment variables.
    pub environment: Vec<(String, String)>,
    /// Additional options of this side.
    pub options: Vec<String>,
}

impl Side {
    /// Creates a side that uses GID index 0 of `device`.
    pub fn new(runner: &Runner, device: &str) -> Self {
        let (runner, device) = (runner.clone(), device.to_owned());
        Self {
            runner,
            device,
            gid_index: 0,
            environment: Vec::new(),
            options: Vec::new(),
        }
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// The parameters of a run.
#[derive(Clone)]
pub struct Pingpong {
    /// The program.
    pub program: &'static str,
    /// The server.
    pub server: Side,
    /// The client.
    pub client: Side,
    /// The host name of the server for the client's TCP connection.
    pub host: String,
    size: u32,
    iterations: u32,
    options: Vec<String>,
    limit: Duration,
}

/// A running pair.
pub struct Pair {
    /// The server.
    pub server: Running,
    /// The client.
    pub client: Running,
    size: u32,
    iterations: u32,
    limit: Duration,
}

/// The results of a pair.
pub struct Ended {
    /// The server's result.
    pub server: Finished,
    /// The client's result.
    pub client: Finished,
    size: u32,
    iterations: u32,
}

/// Locks the machine for one pair. Both sides poll continuously and need a processor each, so
/// concurrent pairs on two processors would measure the scheduler.
pub fn exclusive() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    // The lock protects no data, so poisoning does not matter.
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pingpong {
    /// Creates a run with the program's defaults: 1000 messages of 4096 bytes each way.
    pub fn new(server: Side, client: Side, host: &str) -> Self {
        Self {
            program: "ibv_rc_pingpong",
            server,
            client,
            host: host.to_owned(),
            size: 4096,
            iterations: 1000,
            options: Vec::new(),
            limit: Duration::from_secs(60),
        }
    }

    /// Creates a run with both sides started by `runner`, over the loopback interface.
    pub fn over_loopback(runner: &Runner) -> Self {
        let side = Side::new(runner, "urxe_lo");
        Self::new(side.clone(), side, "127.0.0.1")
    }

    /// Selects another program.
    pub fn program(mut self, program: &'static str) -> Self {
        self.program = program;
        self
    }

    /// Sets the message size in bytes.
    pub fn size(mut self, size: u32) -> Self {
        self.size = size;
        self
    }

    /// Sets the number of messages each way.
    pub fn iterations(mut self, iterations: u32) -> Self {
        self.iterations = iterations;
        self
    }

    /// Adds space-separated options for both sides.
    pub fn options(mut self, options: &str) -> Self {
        self.options
            .extend(options.split_whitespace().map(str::to_owned));
        self
    }

    /// Sets the GID indices.
    pub fn gids(mut self, server: u32, client: u32) -> Self {
        self.server.gid_index = server;
        self.client.gid_index = client;
        self
    }

    /// Sets the time limit.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts the server, waits until it listens, and starts the client.
    ///
    /// # Panics
    /// If the server ends before it listens; with its output.
    #[track_caller]
    pub fn start(&self) -> Pair {
        let port = free_port();
        let server = self.start_side("server", &self.server, port, None);
        let server = tcp::wait_for(server, port, self.limit);
        let client = self.start_side("client", &self.client, port, Some(&self.host));
        let (size, iterations) = (self.size, self.iterations);
        Pair {
            server,
            client,
            size,
            iterations,
            limit: self.limit,
        }
    }

    /// Runs the pair exclusively.
    #[track_caller]
    pub fn run(&self) -> Ended {
        let _exclusive = exclusive();
        self.start().finish()
    }

    /// Runs the server alone, for errors at its start.
    pub fn run_server_alone(&self) -> Finished {
        let _exclusive = exclusive();
        let limit = Duration::from_secs(60);
        self.start_side("server", &self.server, free_port(), None)
            .finish(limit)
    }

    fn start_side(&self, role: &str, side: &Side, port: u16, host: Option<&str>) -> Running {
        let mut command = side.runner.verbs(self.program);
        command
            .args(["-d", &side.device, "-g", &side.gid_index.to_string()])
            .args(["-p", &port.to_string()])
            .args([
                "-s",
                &self.size.to_string(),
                "-n",
                &self.iterations.to_string(),
            ])
            .args(&self.options)
            .args(&side.options)
            .args(host)
            .envs(side.environment.iter().map(|(name, value)| (name, value)));
        let name = format!(
            "{} {role} -s {} {}",
            self.program,
            self.size,
            self.options.join(" ")
        );
        Running::start(name, command)
    }
}

impl Pair {
    /// Returns whether both sides are running.
    pub fn is_running(&mut self) -> bool {
        self.server.is_running() && self.client.is_running()
    }

    /// Waits for the end of both sides.
    pub fn finish(self) -> Ended {
        let client = self.client.finish(self.limit);
        // A server without a client would not end.
        let limit = if client.status.success() {
            self.limit
        } else {
            Duration::from_secs(2)
        };
        let server = self.server.finish(limit);
        Ended {
            server,
            client,
            size: self.size,
            iterations: self.iterations,
        }
    }
}

impl Ended {
    /// Returns the result if both sides succeeded and transferred all bytes. With `-c` the server
    /// must also have validated the received data.
    ///
    /// # Panics
    /// Otherwise, with the output of both sides.
    #[track_caller]
    pub fn success(self) -> Self {
        let bytes = u64::from(self.size) * u64::from(self.iterations) * 2;
        for side in [&self.server, &self.client] {
            let good = side.status.success()
                && !side.timed_out
                && side.stdout.contains(&format!("{bytes} bytes in "))
                && side.stdout.contains(&format!("{} iters in ", self.iterations))
                // The exit status is 0 even if validation fails.
                && !side.stdout.contains("invalid data");
            assert!(good, "{}\n\n{}", self.server, self.client);
        }
        self
    }
}

/// Returns the queue pair number and first PSN of each address in a side's output: its own, then
/// its peer's.
pub fn addresses(output: &str) -> Vec<(u32, u32)> {
    let number = |line: &str, name: &str| {
        let digits = line.split_once(name)?.1.get(..6)?;
        u32::from_str_radix(digits, 16).ok()
    };
    output
        .lines()
        .filter_map(|line| Some((number(line, "QPN 0x")?, number(line, "PSN 0x")?)))
        .collect()
}
