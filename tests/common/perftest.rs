//! Runs a pair of one of Debian's perftest programs and parses its table.

use std::time::Duration;

use super::pingpong::{Side, exclusive};
use super::run::{Finished, Running};
use super::tcp::{self, free_port};

/// The parameters of a run.
#[derive(Clone)]
pub struct Perftest {
    program: &'static str,
    /// The server.
    pub server: Side,
    /// The client.
    pub client: Side,
    /// The host name of the server for the client's TCP connection.
    pub host: String,
    options: Vec<String>,
    limit: Duration,
}

/// A running pair.
pub struct Pair {
    /// The server.
    pub server: Running,
    /// The client.
    pub client: Running,
    limit: Duration,
}

/// The results of a run.
pub struct Ended {
    /// The server's result.
    pub server: Finished,
    /// The client's result.
    pub client: Finished,
}

impl Perftest {
    /// Creates a run of a program such as `ib_send_bw`.
    pub fn new(program: &'static str, server: Side, client: Side, host: &str) -> Self {
        Self {
            program,
            server,
            client,
            host: host.to_owned(),
            options: Vec::new(),
            limit: Duration::from_secs(60),
        }
    }

    /// Adds space-separated options for both sides.
    pub fn options(mut self, options: &str) -> Self {
        self.options
            .extend(options.split_whitespace().map(str::to_owned));
        self
    }

    /// Runs the pair exclusively.
    #[track_caller]
    pub fn run(&self) -> Ended {
        let _exclusive = exclusive();
        self.start().finish()
    }

    /// Starts the server, waits until it listens, and starts the client.
    #[track_caller]
    pub fn start(&self) -> Pair {
        let port = free_port();
        let server = self.start_side("server", &self.server, port, None);
        let server = tcp::wait_for(server, port, self.limit);
        let client = self.start_side("client", &self.client, port, Some(&self.host));
        let limit = self.limit;
        Pair {
            server,
            client,
            limit,
        }
    }

    fn start_side(&self, role: &str, side: &Side, port: u16, host: Option<&str>) -> Running {
        let mut command = side.runner.verbs(self.program);
        command
            .args(["-d", &side.device, "-x", &side.gid_index.to_string()])
            // Ignores changing CPU frequencies, as those of virtual machines.
            .args(["-p", &port.to_string(), "-F"])
            .args(&self.options)
            .args(&side.options)
            .args(host)
            .envs(side.environment.iter().map(|(name, value)| (name, value)));
        let name = format!("{} {role} {}", self.program, self.options.join(" "));
        Running::start(name, command)
    }
}

impl Pair {
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
        Ended { server, client }
    }
}

impl Ended {
    /// Returns the result if both sides succeeded and the client's table has exactly the rows of
    /// these sizes with this number of iterations.
    ///
    /// # Panics
    /// Otherwise, with the output of both sides.
    #[track_caller]
    pub fn success(self, sizes: &[u64], iterations: u64) -> Self {
        let good = |side: &Finished| side.status.success() && !side.timed_out;
        let expected: Vec<_> = sizes.iter().map(|size| (*size, iterations)).collect();
        assert!(
            good(&self.server) && good(&self.client) && rows(&self.client.stdout) == expected,
            "{}\n\n{}",
            self.server,
            self.client
        );
        self
    }
}

/// Returns the first two columns of the table: message size in bytes, and iterations.
fn rows(output: &str) -> Vec<(u64, u64)> {
    let row = |line: &str| {
        let columns: Option<Vec<f64>> = line
            .split_whitespace()
            .map(|column| column.parse().ok())
            .collect();
        match columns?[..] {
            [size, iterations, _, _, ..] => Some((size as u64, iterations as u64)),
            _ => None,
        }
    };
    output.lines().filter_map(row).collect()
}
