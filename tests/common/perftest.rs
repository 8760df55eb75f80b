//! Debian's perftest: a server and a client of one of its programs, and the table that both print.

use std::time::Duration;

use super::pingpong::{Side, turn};
use super::run::{Finished, Running};
use super::tcp::{self, free_port};

/// A run of one of perftest's programs to be.
#[derive(Clone)]
pub struct Perftest {
    program: &'static str,
    /// The side that waits.
    pub server: Side,
    /// The side that begins.
    pub client: Side,
    /// The host at which the client finds the server, over TCP.
    pub host: String,
    options: Vec<String>,
    limit: Duration,
}

/// A run that has ended.
pub struct Ended {
    /// The side that waited.
    pub server: Finished,
    /// The side that began.
    pub client: Finished,
}

impl Perftest {
    /// One of the programs, such as `ib_send_bw`.
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

    /// With more options, separated by spaces, for both sides.
    pub fn options(mut self, options: &str) -> Self {
        self.options
            .extend(options.split_whitespace().map(str::to_owned));
        self
    }

    /// Runs the pair to its end when it is this test's turn.
    #[track_caller]
    pub fn run(&self) -> Ended {
        let _turn = turn();
        let port = free_port();
        let server = self.start_side("server", &self.server, port, None);
        let server = tcp::wait_for(server, port, self.limit);
        let client = self.start_side("client", &self.client, port, Some(&self.host));
        let client = client.finish(self.limit);
        // A server without a client would wait for long.
        let patience = if client.status.success() {
            self.limit
        } else {
            Duration::from_secs(2)
        };
        let server = server.finish(patience);
        Ended { server, client }
    }

    fn start_side(&self, role: &str, side: &Side, port: u16, host: Option<&str>) -> Running {
        let mut command = side.place.verbs(self.program);
        command
            .args(["-d", &side.device, "-x", &side.gid_index.to_string()])
            // Frequencies that change, as those of virtual machines do, are no error.
            .args(["-p", &port.to_string(), "-F"])
            .args(&self.options)
            .args(&side.options)
            .args(host)
            .envs(side.environment.iter().map(|(name, value)| (name, value)));
        let name = format!("{} {role} {}", self.program, self.options.join(" "));
        Running::start(name, command)
    }
}

impl Ended {
    /// Passes the result on if both sides ended well, and the client's table has exactly the rows
    /// for messages of these sizes, each of so many iterations.
    ///
    /// # Panics
    /// Otherwise, showing everything that both said.
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

/// The first two columns of the table: message size in bytes, and iterations.
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
