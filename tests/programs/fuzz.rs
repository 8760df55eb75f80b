//! `urxe fuzz` against a program over urxe, on another host.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::namespace::VethPair;
use crate::common::require::{IP, Need, require};
use crate::common::run::{Finished, POLL_INTERVAL, Running, run};
use crate::common::runner::{Directory, Runner};

/// Debug builds on a busy machine are slow.
const LIMIT: Duration = Duration::from_secs(300);

/// The program that grants memory to each client.
const PROGRAM: &str = "tests/rxe/grant/grant.c";

/// A shell script: `$0` is the command `urxe`, `$1` the source, `$2` the program.
const COMPILE: &str = r#"eval "$($0 env)"
cc -D_GNU_SOURCE -Wall -Wextra -Werror -o "$2" "$1" $(pkg-config --cflags --libs librdmacm libibverbs)"#;

/// A peer at one end of a cable, to be tested from the other end.
struct Peer {
    cable: VethPair,
    _directory: Directory,
    running: Running,
}

impl Peer {
    fn start() -> Option<Peer> {
        Peer::start_with(&[])
    }

    /// Starts the program with further arguments.
    fn start_with(arguments: &[&str]) -> Option<Peer> {
        let met = require(&[
            Need::Program("cc", "gcc"),
            Need::Program("pkg-config", "pkg-config"),
            IP,
            Need::NetworkNamespaces,
        ]);
        if !met {
            return None;
        }
        let directory = Directory::new();
        let program = directory.path().join("grant");
        let urxe = Runner::here().urxe();
        let mut shell = Runner::here().command("sh");
        shell.args(["-ec", COMPILE]).arg(urxe.get_program());
        shell.arg(urxe_tests::workspace().join(PROGRAM));
        shell.arg(&program);
        run("cc", shell, LIMIT).success();
        let cable = VethPair::new(&Runner::here(), 1500);
        let mut command = cable
            .a
            .runner()
            .verbs(program.to_str().expect("a plain path"));
        command.arg("::").args(arguments);
        let mut running = Running::start("grant", command);
        let deadline = Instant::now() + LIMIT;
        while !running.has_printed("listening") {
            assert!(running.is_running() && Instant::now() < deadline);
            thread::sleep(POLL_INTERVAL);
        }
        Some(Peer {
            cable,
            _directory: directory,
            running,
        })
    }

    fn fuzz(&self, address: &str, words: &[&str]) -> Finished {
        let mut command = self.cable.b.runner().urxe();
        command.arg("fuzz").arg(address).args(words);
        run("urxe fuzz", command, LIMIT)
    }
}

/// The peer refuses the WRITE that initializes its memory, which is a violation on each of three
/// connections. No packet is sent on a connection that has ended.
#[test]
fn peer_that_cannot_be_written_ends_the_run() {
    let Some(peer) = Peer::start_with(&["read-only"]) else {
        return;
    };
    let found = peer.fuzz(VethPair::A, &["--packets", "100"]);
    assert_eq!(found.status.code(), Some(1), "{found}");
    let counts = "3 packets in 0 cases, over 3 connections";
    assert!(found.stdout.contains(counts), "{found}");
    let times = "got NAK RemoteAccess, 3 times";
    assert!(found.stdout.contains(times), "{found}");
}

#[test]
fn urxe_conforms_under_malformed_packets() {
    let Some(mut peer) = Peer::start() else {
        return;
    };
    for (address, seed) in [(VethPair::A, "1"), (VethPair::A6, "2")] {
        let words = ["--seed", seed, "--packets", "1500"];
        let found = peer.fuzz(address, &words).success();
        // The run must include executed and rejected requests.
        assert!(
            found.stdout.contains("NAK remote access (9.7.4.1.5)"),
            "{found}"
        );
        assert!(
            found.stdout.contains("executed, and acknowledged"),
            "{found}"
        );
    }
    let words = ["--seed", "3", "--packets", "50", "--json"];
    let found = peer.fuzz(VethPair::A, &words).success();
    let report: serde_json::Value = serde_json::from_str(&found.stdout).expect("JSON");
    assert_eq!(report["seed"], 3, "{found}");
    assert!(report["packets"].as_u64() >= Some(50), "{found}");
    assert_eq!(report["violations"], serde_json::json!([]), "{found}");
    assert!(report["rules"][0]["tests"].as_u64() > Some(0), "{found}");
    assert!(peer.running.is_running());
}

#[test]
fn case_is_replayed_with_each_of_its_packets() {
    let Some(peer) = Peer::start() else {
        return;
    };
    let replays = [0, 1].map(|_| {
        let found = peer.fuzz(VethPair::A, &["--replay", "1:3"]).success();
        let is_verdict = |line: &&str| line.trim_start().starts_with("expected:");
        let lines = found.stdout.lines().filter(is_verdict);
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    assert!(!replays[0].is_empty());
    assert_eq!(replays[0], replays[1]);
}

#[test]
fn peer_without_a_listener_is_reported() {
    if !require(&[IP, Need::NetworkNamespaces]) {
        return;
    }
    let cable = VethPair::new(&Runner::here(), 1500);
    let mut command = cable.b.runner().urxe();
    command.args(["fuzz", VethPair::A, "--port", "9"]);
    let found = run("urxe fuzz", command, LIMIT);
    assert_eq!(found.status.code(), Some(2), "{found}");
    assert!(
        found.stderr.contains("check that a program listens there"),
        "{found}"
    );
    // No empty report.
    assert_eq!(found.stdout, "", "{found}");
}
