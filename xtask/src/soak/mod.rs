//! `cargo xtask soak`: a test of stability over time.
//!
//! Pairs of `rping`, which compares every byte, run over a network that loses, duplicates and
//! reorders packets. Clients connect and disconnect. From time to time a process is killed or
//! stopped, the interface goes down, an address changes, or descriptors, memory or disk space are
//! scarce.
//!
//! The test requires that no process receives a wrong byte, that undisturbed processes succeed,
//! that disturbed ones fail with an error and without a crash, that a server's memory, descriptors
//! and threads do not grow, and that all slot names are released at the end.

mod exhaustion;
mod pair;
mod usage;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::namespace;
use crate::release::{PRODUCTS, build, succeed};
use pair::{Ended, Pair};

/// The options of the soak test.
#[derive(clap::Args)]
pub(crate) struct SoakOptions {
    /// Duration in minutes
    #[arg(long, default_value_t = 10)]
    minutes: u64,

    /// Number of servers, each with one client at a time
    #[arg(long, default_value_t = 4)]
    pairs: u16,

    /// Seconds between two killed clients
    #[arg(long, default_value_t = 10)]
    crash_every: u64,

    /// Network faults, in the syntax of URXE_FAULTS
    #[arg(long, default_value = "drop=1%,dup=0.5%,reorder=0.5%,seed=7")]
    faults: String,
}

/// The interval of checks of the programs.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The time after which servers have warmed up and their resources are counted.
const WARM: Duration = Duration::from_secs(20);
/// The first server port.
const PORT: u16 = 7300;
/// The address that is added and removed.
const ADDRESS: &str = "10.213.0.1/32";

/// The period and the first occurrence of each disturbance, in seconds.
const STOP: (u64, u64) = (23, 13);
const SERVER_CRASH: (u64, u64) = (61, 47);
const LINK_DOWN: (u64, u64) = (97, 71);
const ADDRESS_CHANGE: (u64, u64) = (17, 5);
const EXHAUSTION: (u64, u64) = (31, 19);
/// The time for which the interface is down.
const DOWN_TIME: Duration = Duration::from_millis(500);

/// Runs the command. Returns whether all requirements held.
pub(crate) fn run(options: &SoakOptions, workspace: &Path, target: &Path) -> bool {
    match try_run(options, workspace, target) {
        Ok(problems) => {
            for problem in &problems {
                eprintln!("soak: {problem}");
            }
            problems.is_empty()
        }
        Err(error) => {
            eprintln!("soak: {error}");
            false
        }
    }
}

fn try_run(options: &SoakOptions, workspace: &Path, target: &Path) -> Result<Vec<String>, String> {
    if !namespace::is_inside() {
        build(&PRODUCTS, workspace, target)?;
        if !namespace::enter()? {
            return Err("cannot create a network namespace for the test".into());
        }
    }
    let libraries = libraries(target)?;
    let mut soak = Soak {
        pairs: (0..options.pairs)
            .map(|n| Pair::start(PORT + n, n == 0, &libraries, &options.faults))
            .collect::<Result<_, _>>()?,
        libraries,
        turn: 0,
        tally: Tally::default(),
        problems: Vec::new(),
    };
    let end = Duration::from_secs(options.minutes * 60);
    let started = Instant::now();
    let mut second = 0;
    let mut warm = false;
    while started.elapsed() < end {
        soak.check();
        thread::sleep(CHECK_INTERVAL);
        if !warm && started.elapsed() > WARM {
            warm = true;
            soak.pairs.iter_mut().for_each(Pair::record_usage);
        }
        while second < started.elapsed().as_secs() {
            second += 1;
            soak.disturb(second, options.crash_every)?;
        }
    }
    Ok(soak.finish())
}

/// The number of occurrences of each event.
#[derive(Default)]
struct Tally {
    whole: u64,
    killed: u64,
    exhausted: u64,
    interrupted: u64,
    servers_killed: u64,
    servers_refused: u64,
    stopped: u64,
    down: u64,
    addresses: u64,
}

struct Soak {
    pairs: Vec<Pair>,
    libraries: PathBuf,
    /// The index of the next pair to disturb.
    turn: usize,
    tally: Tally,
    problems: Vec<String>,
}

impl Soak {
    /// Checks all pairs.
    fn check(&mut self) {
        for pair in &mut self.pairs {
            match pair.check() {
                Ok(None) => {}
                Ok(Some(Ended::Whole)) => self.tally.whole += 1,
                Ok(Some(Ended::Killed)) => self.tally.killed += 1,
                Ok(Some(Ended::Interrupted)) => self.tally.interrupted += 1,
                Ok(Some(Ended::Refused)) => self.tally.servers_refused += 1,
                Err(problem) => self.problems.push(problem),
            }
        }
    }

    fn next(&mut self) -> &mut Pair {
        self.turn += 1;
        let turn = self.turn % self.pairs.len();
        &mut self.pairs[turn]
    }

    /// Applies the disturbances that are due in this second.
    fn disturb(&mut self, second: u64, crash_every: u64) -> Result<(), String> {
        let due = |(every, first): (u64, u64)| second % every == first % every;
        if second.is_multiple_of(crash_every.max(1)) {
            self.next().kill_client();
        }
        if due(SERVER_CRASH) {
            self.next().restart_server()?;
            self.tally.servers_killed += 1;
        }
        if due(STOP) {
            self.next().stop_client();
            self.tally.stopped += 1;
        }
        if due(ADDRESS_CHANGE) {
            let word = if self.tally.addresses.is_multiple_of(2) {
                "add"
            } else {
                "del"
            };
            ip(&["addr", word, ADDRESS, "dev", "lo"])?;
            self.tally.addresses += 1;
        }
        if due(LINK_DOWN) {
            self.pairs.iter_mut().for_each(Pair::allow_failure);
            ip(&["link", "set", "lo", "down"])?;
            thread::sleep(DOWN_TIME);
            ip(&["link", "set", "lo", "up"])?;
            self.tally.down += 1;
        }
        if due(EXHAUSTION) {
            let tried = exhaustion::run(self.tally.exhausted, &self.libraries);
            self.tally.exhausted += 1;
            self.problems.extend(tried.err());
        }
        Ok(())
    }

    /// Ends all programs and returns the problems.
    fn finish(mut self) -> Vec<String> {
        for pair in &mut self.pairs {
            match pair.finish() {
                Ok(changes) => println!("{changes}"),
                Err(problem) => self.problems.push(problem),
            }
        }
        drop(std::mem::take(&mut self.pairs));
        let names = usage::names();
        if !names.is_empty() {
            self.problems
                .push(format!("names not released: {}", names.join(" ")));
        }
        let Tally {
            whole,
            killed,
            exhausted,
            interrupted,
            servers_killed,
            servers_refused,
            stopped,
            down,
            addresses,
        } = self.tally;
        println!(
            "clients: {whole} succeeded, {killed} were killed, {interrupted} lost their server or \
             network, {stopped} were stopped temporarily\n\
             servers: {servers_killed} were killed, {servers_refused} ended because a connecting \
             client was killed\n\
             disturbances: interface down {down} times, address changed {addresses} times, \
             descriptors, memory or disk scarce {exhausted} times\n\
             problems: {}",
            self.problems.len()
        );
        self.problems
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    succeed(Command::new("ip").args(words))
}

/// Creates a directory with the library under the sonames that programs load.
fn libraries(target: &Path) -> Result<PathBuf, String> {
    let directory = target.join("soak");
    let error = |error: std::io::Error| format!("{}: {error}", directory.display());
    fs::create_dir_all(&directory).map_err(error)?;
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let link = directory.join(name);
        if !link.exists() {
            symlink(target.join("release/liburxe.so"), &link).map_err(error)?;
        }
    }
    Ok(directory)
}
