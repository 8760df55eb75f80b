//! `cargo xtask soak`: does it last?
//!
//! Pairs of ordinary programs (`rping`, which compares every byte that comes back) run over a network that
//! loses, doubles and reorders packets. Clients come and go; now and then one of either side is killed, or
//! stopped for a while, the interface goes down, an address comes and goes, descriptors, memory or disk are scarce. What must hold:
//! nobody sees a wrong byte; who was left alone ends well; who was not has an error and no crash; what a server holds -
//! memory, descriptors, threads - stays as it is, and no name of a slot is left when all have ended.

mod pair;
mod tight;
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

/// How long, and with how many.
#[derive(clap::Args)]
pub(crate) struct SoakOptions {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u64,

    /// Servers, each with a client at a time
    #[arg(long, default_value_t = 4)]
    pairs: u16,

    /// Seconds between two crashes
    #[arg(long, default_value_t = 10)]
    crash_every: u64,

    /// What befalls packets, as in URXE_FAULTS
    #[arg(long, default_value = "drop=1%,dup=0.5%,reorder=0.5%,seed=7")]
    faults: String,
}

/// Between two looks at the programs.
const LOOK: Duration = Duration::from_millis(50);
/// Servers have warmed up after this, and what they hold is counted for the first time.
const WARM: Duration = Duration::from_secs(20);
/// The first of the servers' ports.
const PORT: u16 = 7300;
/// An address that comes and goes.
const ADDRESS: &str = "10.213.0.1/32";

/// What happens to whom besides, and how often: in seconds, and the second in which it happens first.
const STOP: (u64, u64) = (23, 13);
const SERVER_CRASH: (u64, u64) = (61, 47);
const LINK_DOWN: (u64, u64) = (97, 71);
const ADDRESS_CHANGE: (u64, u64) = (17, 5);
const TIGHT: (u64, u64) = (31, 19);
/// How long the interface is down.
const DOWN: Duration = Duration::from_millis(500);

/// Runs the command; whether all held.
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
            return Err("no network namespace can be made here, and this disturbs others".into());
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
        soak.look();
        thread::sleep(LOOK);
        if !warm && started.elapsed() > WARM {
            warm = true;
            soak.pairs.iter_mut().for_each(Pair::count);
        }
        while second < started.elapsed().as_secs() {
            second += 1;
            soak.strike(second, options.crash_every)?;
        }
    }
    Ok(soak.finish())
}

/// What happened how often.
#[derive(Default)]
struct Tally {
    whole: u64,
    killed: u64,
    tight: u64,
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
    /// Whose turn it is to suffer.
    turn: usize,
    tally: Tally,
    problems: Vec<String>,
}

impl Soak {
    /// Looks after everybody.
    fn look(&mut self) {
        for pair in &mut self.pairs {
            match pair.look() {
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

    /// What is due in this second.
    fn strike(&mut self, second: u64, crash_every: u64) -> Result<(), String> {
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
            self.pairs.iter_mut().for_each(Pair::excuse);
            ip(&["link", "set", "lo", "down"])?;
            thread::sleep(DOWN);
            ip(&["link", "set", "lo", "up"])?;
            self.tally.down += 1;
        }
        if due(TIGHT) {
            let tried = tight::some(self.tally.tight, &self.libraries);
            self.tally.tight += 1;
            self.problems.extend(tried.err());
        }
        Ok(())
    }

    /// Ends everybody, and tells what was left.
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
                .push(format!("names are left: {}", names.join(" ")));
        }
        let Tally {
            whole,
            killed,
            tight,
            interrupted,
            servers_killed,
            servers_refused,
            stopped,
            down,
            addresses,
        } = self.tally;
        println!(
            "clients: {whole} ended well, {killed} were killed, {interrupted} lost their server or their network; \
             {stopped} times one was stopped for a while\n\
             servers: {servers_killed} were killed, {servers_refused} ended as rping does when a client is killed that connects\n\
             the interface was down {down} times, an address came or went {addresses} times, files, memory or disk were scarce \
             {tight} times\n\
             problems: {}",
            self.problems.len()
        );
        self.problems
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    succeed(Command::new("ip").args(words))
}

/// A directory with the library under the names that programs look for.
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
