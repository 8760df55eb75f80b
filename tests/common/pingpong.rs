//! Debian's `ibv_rc_pingpong` and its like for other services: a server and a client, and what they must say in the end.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::place::Place;
use super::run::{Finished, Running};
use super::tcp::{self, free_port};

/// One side of a pair.
#[derive(Clone)]
pub struct Side {
    /// Where it runs.
    pub place: Place,
    /// Its device.
    pub device: String,
    /// The index of its GID.
    pub gid_index: u32,
    /// More variables for its environment.
    pub environment: Vec<(String, String)>,
    /// Options for this side alone.
    pub options: Vec<String>,
}

impl Side {
    /// A side that uses the GID of index 0 of `device`.
    pub fn new(place: &Place, device: &str) -> Self {
        let (place, device) = (place.clone(), device.to_owned());
        Self {
            place,
            device,
            gid_index: 0,
            environment: Vec::new(),
            options: Vec::new(),
        }
    }

    /// With a variable in its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A run of `ibv_rc_pingpong`, or its like, to be.
#[derive(Clone)]
pub struct Pingpong {
    /// Which program it is.
    pub program: &'static str,
    /// The side that waits.
    pub server: Side,
    /// The side that begins.
    pub client: Side,
    /// The host at which the client finds the server to agree on the connection, over TCP.
    pub host: String,
    size: u32,
    iterations: u32,
    options: Vec<String>,
    limit: Duration,
}

/// A pair under way.
pub struct Pair {
    /// The side that waits.
    pub server: Running,
    /// The side that begins.
    pub client: Running,
    size: u32,
    iterations: u32,
    limit: Duration,
}

/// A pair that has ended.
pub struct Ended {
    /// The side that waited.
    pub server: Finished,
    /// The side that began.
    pub client: Finished,
    size: u32,
    iterations: u32,
}

/// Waits for the machine's turn. Both sides of a pair poll without rest, and so want a processor
/// each; several pairs at once on two processors would measure the scheduler's patience.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed while it had its turn leaves nothing behind that matters.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pingpong {
    /// The program's own defaults: 1000 messages each way, of 4096 bytes.
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

    /// Both sides in `place`, over the loopback interface.
    pub fn over_loopback(place: &Place) -> Self {
        let side = Side::new(place, "urxe_lo");
        Self::new(side.clone(), side, "127.0.0.1")
    }

    /// With another program of the kind.
    pub fn program(mut self, program: &'static str) -> Self {
        self.program = program;
        self
    }

    /// With messages of `size` bytes.
    pub fn size(mut self, size: u32) -> Self {
        self.size = size;
        self
    }

    /// With this many messages each way.
    pub fn iterations(mut self, iterations: u32) -> Self {
        self.iterations = iterations;
        self
    }

    /// With more options, separated by spaces, for both sides.
    pub fn options(mut self, options: &str) -> Self {
        self.options
            .extend(options.split_whitespace().map(str::to_owned));
        self
    }

    /// With the indices of the GIDs.
    pub fn gids(mut self, server: u32, client: u32) -> Self {
        self.server.gid_index = server;
        self.client.gid_index = client;
        self
    }

    /// With another limit for the time that it takes.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts the server, waits until it listens, and starts the client.
    ///
    /// # Panics
    /// When the server ends before it listens; its output is shown.
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

    /// Runs the pair to its end when it is this test's turn.
    #[track_caller]
    pub fn run(&self) -> Ended {
        let _turn = turn();
        self.start().finish()
    }

    /// Runs the server alone, for what it says when it cannot even start.
    pub fn run_server_alone(&self) -> Finished {
        let _turn = turn();
        let limit = Duration::from_secs(10);
        self.start_side("server", &self.server, free_port(), None)
            .finish(limit)
    }

    fn start_side(&self, role: &str, side: &Side, port: u16, host: Option<&str>) -> Running {
        let mut command = side.place.verbs(self.program);
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
    /// Whether both sides are still under way.
    pub fn is_running(&mut self) -> bool {
        self.server.is_running() && self.client.is_running()
    }

    /// Waits for the end of both.
    pub fn finish(self) -> Ended {
        let client = self.client.finish(self.limit);
        // A server without a client would wait forever.
        let patience = if client.status.success() {
            self.limit
        } else {
            Duration::from_secs(2)
        };
        let server = self.server.finish(patience);
        Ended {
            server,
            client,
            size: self.size,
            iterations: self.iterations,
        }
    }
}

impl Ended {
    /// Passes the result on if both sides ended well and moved all bytes, and the server, if it
    /// was asked to validate what it received (`-c`), found nothing amiss.
    ///
    /// # Panics
    /// Otherwise, showing everything that both said.
    #[track_caller]
    pub fn success(self) -> Self {
        let bytes = u64::from(self.size) * u64::from(self.iterations) * 2;
        for side in [&self.server, &self.client] {
            let good = side.status.success()
                && !side.timed_out
                && side.stdout.contains(&format!("{bytes} bytes in "))
                && side.stdout.contains(&format!("{} iters in ", self.iterations))
                // The exit status is 0 even then.
                && !side.stdout.contains("invalid data");
            assert!(good, "{}\n\n{}", self.server, self.client);
        }
        self
    }
}

/// The queue pair number and first PSN of each address that a side of the pair printed: its own,
/// then its peer's.
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
